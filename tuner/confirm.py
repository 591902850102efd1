"""Confirming a winner on traffic that the search has not seen.

The best of a search is lucky by selection, so its own run counts for nothing here: each candidate meets fresh
prompts at freshly jittered instants, several times, and the worst of all runs must keep the SLO.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from tuner.announce import Announcer
from tuner.budget import Budget
from tuner.objective import ABORT_RATIO, CONFIRM_MARGIN, lost_rate
from tuner.runner import Runner
from tuner.search_space import describe, step_down
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial

MAX_CANDIDATES = 6
# Seeds of different rounds never meet: a study run again confirms on traffic it has not seen either.
_SEEDS_PER_ROUND = 1000


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The verdict.

    Attributes:
        runs: the winner's fresh runs; empty when no candidate stood the test.
        out_of_time: the budget ended while candidates were left.
    """

    runs: tuple[Trial, ...] = ()
    out_of_time: bool = False


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A config, and the worst pause it is expected to have (None: no run tells)."""

    config: SchedulerConfig
    pause_s: float | None


def confirm(
    candidates: Sequence[Trial],
    *,
    nearest: Trial,
    runner: Runner,
    plan_seed: int,
    slo_pause_s: float,
    replicates: int,
    allowed_lost_rate: float,
    budget: Budget,
    announcer: Announcer,
) -> Confirmation:
    """Tries candidates in turn until one stands with a margin; failing that, the first that stood narrowly.

    Args:
        candidates: cheapest first.
        nearest: the run with the smallest pause, to step down from when the candidates are used up.
    """
    limit_s = CONFIRM_MARGIN * slo_pause_s
    seeds = [plan_seed + _SEEDS_PER_ROUND * (runner.study.round + 1) + i for i in range(replicates)]
    queue = _Queue(candidates, nearest, limit_s, slo_pause_s)
    narrow: tuple[Trial, ...] = ()
    for tried, candidate in enumerate(queue):
        if tried and budget.left_to_confirm_s < replicates * runner.typical_run_s(0.0):
            return Confirmation(narrow, out_of_time=True)
        shown = describe(candidate.config)
        announcer.doing(f"confirming {shown} on fresh traffic")
        runs = _replicate(candidate.config, seeds, runner, slo_pause_s, allowed_lost_rate)
        worst = max((run.worst_pause_s or 0.0 for run in runs), default=0.0)
        if runs[-1].status is TrialStatus.INVALID:
            announcer.done(f"{shown} could not be measured", runs[-1].problems)
            continue
        kept = len(runs) == replicates and _keeps(runs[-1], slo_pause_s, allowed_lost_rate)
        if kept and worst <= limit_s:
            announcer.done(f"confirmed {shown}", f"worst pause {worst:.2f} s")
            return Confirmation(tuple(runs))
        if kept:
            announcer.done(
                f"{shown} kept the SLO narrowly", f"worst pause {worst:.2f} s; trying for a margin"
            )
            narrow = narrow or tuple(runs)
        else:
            announcer.done(f"{shown} did not stand", f"paused {worst:.2f} s on fresh traffic")
        queue.demote(candidate, worst)
    return Confirmation(narrow)


def _replicate(
    config: SchedulerConfig, seeds: Sequence[int], runner: Runner, limit_s: float, allowed_lost_rate: float
) -> list[Trial]:
    """Fresh runs, up to the first that fails."""
    runs: list[Trial] = []
    for seed in seeds:
        runs.append(runner.run(TrialKind.CONFIRM, config, seed, limit_s))
        if not _keeps(runs[-1], limit_s, allowed_lost_rate):
            break
    return runs


def _keeps(trial: Trial, limit_s: float, allowed_lost_rate: float) -> bool:
    keeps = trial.is_complete and trial.worst_pause_s is not None and trial.worst_pause_s <= limit_s
    return keeps and lost_rate(trial.counts) <= allowed_lost_rate


class _Queue:
    """Who is tried next: what failed says how much a pause grows on fresh traffic, and whoever would then
    break the SLO too is passed over; when nobody is left, steps down from what came nearest.
    """

    def __init__(
        self, candidates: Sequence[Trial], nearest: Trial, limit_s: float, slo_pause_s: float
    ) -> None:
        kept = (
            nearest.is_complete and nearest.worst_pause_s is not None and nearest.worst_pause_s <= slo_pause_s
        )
        first = candidates or ([nearest] if kept else [])
        self._waiting = [_Candidate(trial.config, trial.worst_pause_s) for trial in first]
        self._nearest = _Candidate(nearest.config, nearest.worst_pause_s)
        self._within_reach = (nearest.worst_pause_s or float("inf")) <= ABORT_RATIO * slo_pause_s
        self._limit_s = limit_s
        self._growth = 1.0

    def __iter__(self) -> Iterator[_Candidate]:
        for _ in range(MAX_CANDIDATES):
            candidate = self._next()
            if candidate is None:
                return
            yield candidate

    def demote(self, candidate: _Candidate, worst_pause_s: float) -> None:
        """The candidate failed with this pause, which is a lower bound."""
        if candidate.pause_s:
            self._growth = max(self._growth, worst_pause_s / candidate.pause_s)
        self._nearest = _Candidate(candidate.config, None)
        self._within_reach = True

    def _next(self) -> _Candidate | None:
        while self._waiting:
            candidate = self._waiting.pop(0)
            if (candidate.pause_s or 0.0) * self._growth <= self._limit_s:
                return candidate
        lower = step_down(self._nearest.config)
        smallest = lower == self._nearest.config
        return None if smallest or not self._within_reach else _Candidate(lower, None)
