"""What a study is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from tuner.search.limits import Floor
from tuner.search_space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a study is asked to do.

    Attributes:
        seed: of the traffic every searched config meets.
        num_trials: live search trials at most; the budget may end the search before.
        num_simulated: configs tried in the simulator.
        replicates: on fresh traffic, that each candidate meets at least.
        simulate_share: of the budget, that searching in the simulator may take.
        try_first: configs that did well elsewhere, worth a live trial each before anything else is tried.
        expected_run_s: a run's length until one has been made.
        floor: what no config can go below; None when it was not measured.
        num_fresh: different windows that there are to confirm on; None where every seed is one.
    """

    space: SearchSpace
    seed: int
    num_trials: int
    num_simulated: int = 300
    replicates: int = 3
    simulate_share: float = 0.08
    try_first: tuple[SchedulerConfig, ...] = ()
    expected_run_s: float = 30.0
    floor: Floor | None = None
    num_fresh: int | None = None

    @property
    def slo_pause_s(self) -> float:
        return self.space.slo_pause_s
