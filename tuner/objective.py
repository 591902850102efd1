"""What a trial is worth to the search: one number to make small, three that must not be above zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.core.records import LOST
from tuner.store.models import TrialStatus
from tuner.trials import Trial

# A winner is chosen among trials that keep this share of the SLO: the best of a search is lucky by selection.
# With a margin and three fresh replicates 100 % of winners kept their SLO, without them 8 to 75 % did (our
# measurement over 12-16 simulated searches, November 2026). On two CPU cores the worst of three fresh runs
# paused 1.07 to 1.21 times as long as the run that chose the config.
SEARCH_MARGIN = 0.82
# The worst of the fresh replicates must keep this share, so that the next window keeps the SLO itself.
CONFIRM_MARGIN = 0.95
# A maximum only grows: beyond this multiple of the SLO a run cannot be saved and is stopped.
ABORT_RATIO = 1.15
# Stands for an infinite long TTFT (somebody was refused or failed): a database holds no infinity.
PENALTY_S = 1e6
# Ten lost requests in a hundred weigh as much as a pause at twice its limit.
_LOST_UNIT = 0.1


@dataclass(frozen=True, slots=True)
class Score:
    """A trial as the search sees it. Constraints are in units of their limit; at most 0 keeps it.

    Attributes:
        long_ttft_s: finite; `PENALTY_S` stands for infinity.
    """

    long_ttft_s: float
    pause: float
    lost: float
    crash: float

    @property
    def constraints(self) -> tuple[tuple[str, float], ...]:
        """Always all of them and in this order: samplers take the columns by their place."""
        return ("pause", self.pause), ("shed", self.lost), ("crash", self.crash)

    @property
    def feasible(self) -> bool:
        return all(value <= 0.0 for _, value in self.constraints)


# Told to the search as a finished trial: samplers do not see failed ones and would go back there.
CRASHED = Score(long_ttft_s=PENALTY_S, pause=0.0, lost=0.0, crash=1.0)


def lost_rate(counts: Mapping[str, int]) -> float:
    """Share of scheduled requests that were refused, failed or never sent; `counts` by outcome."""
    total = sum(counts.values())
    return sum(counts.get(kind.value, 0) for kind in LOST) / total if total else 0.0


def score(trial: Trial, slo_pause_s: float, allowed_lost_rate: float) -> Score:
    """The trial's worth.

    Args:
        allowed_lost_rate: what the baseline lost: admission must not win by refusing more.
    """
    if trial.status is TrialStatus.CRASHED:
        return CRASHED
    pause = trial.worst_pause_s
    return Score(
        # A run that was stopped early says nothing of its TTFT, and what it never sent was not lost; its
        # pause rules it out anyway.
        long_ttft_s=PENALTY_S if trial.is_bound or trial.long_ttft_p95_s is None else trial.long_ttft_p95_s,
        pause=1.0 if pause is None else pause / (SEARCH_MARGIN * slo_pause_s) - 1.0,
        lost=0.0 if trial.is_bound else (lost_rate(trial.counts) - allowed_lost_rate) / _LOST_UNIT,
        crash=0.0,
    )
