"""What a trial is worth to the search: one number to make small, some that must not be above zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.core.records import LOST
from tuner.store.models import TrialStatus
from tuner.trials import Trial

# A maximum only grows: beyond this multiple of the SLO a run cannot be saved and is stopped. Up to there it
# goes on, for its long TTFT tells something too. Chosen, not measured.
ABORT_RATIO = 1.15
# Stands for an infinite long TTFT (somebody was refused or failed): a database holds no infinity.
PENALTY_S = 1e6
# Ten lost requests in a hundred weigh as much as a pause at twice its limit: chosen, not measured.
_LOST_UNIT = 0.1
# Short requests may wait longer than they did without chunking by this share and so many pause SLOs: their
# p95 is the worst of a few. Nor is what one would do by hand held against a config. Chosen, not measured.
_SHORT_RATIO, _SHORT_SLOS, _SHORT_BY_HAND = 1.25, 0.5, 1.25


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a config may cost others: what the baseline cost them, and a little more.

    Attributes:
        lost_rate: admission must not win by refusing more.
        short_ttft_s: a short TTFT must not be sold for a long one; None without short requests, or on other
            traffic than the baseline's.
    """

    lost_rate: float = 0.0
    short_ttft_s: float | None = None

    @classmethod
    def by(cls, baseline: Trial, by_hand: Trial | None, slo_pause_s: float) -> Allowed:
        """Args: by_hand: the rule of thumb's run, when it kept the SLO."""
        if (short_s := baseline.short_ttft_p95_s) is None:
            return cls(lost_rate(baseline.counts))
        limit_s = _SHORT_RATIO * short_s + _SHORT_SLOS * slo_pause_s
        if by_hand is not None and by_hand.short_ttft_p95_s is not None:
            limit_s = max(limit_s, _SHORT_BY_HAND * by_hand.short_ttft_p95_s)
        return cls(lost_rate(baseline.counts), limit_s)


@dataclass(frozen=True, slots=True)
class Score:
    """A trial as the search sees it. Constraints are in units of their limit; at most 0 keeps it.

    Attributes:
        long_ttft_s: finite; `PENALTY_S` stands for infinity.
        short: how long short requests waited.
    """

    long_ttft_s: float
    pause: float
    lost: float
    short: float
    crash: float

    @property
    def constraints(self) -> tuple[tuple[str, float], ...]:
        """Always all of them and in this order: samplers take the columns by their place."""
        return ("pause", self.pause), ("shed", self.lost), ("short_ttft", self.short), ("crash", self.crash)

    @property
    def fair(self) -> bool:
        """Whether all but the pause is kept."""
        return max(self.lost, self.short, self.crash) <= 0.0

    @property
    def feasible(self) -> bool:
        return self.fair and self.pause <= 0.0


# Told to the search as a finished trial: samplers do not see failed ones and would go back there.
CRASHED = Score(long_ttft_s=PENALTY_S, pause=0.0, lost=0.0, short=0.0, crash=1.0)


def lost_rate(counts: Mapping[str, int]) -> float:
    """Share of scheduled requests that were refused, failed or never sent; `counts` by outcome."""
    total = sum(counts.values())
    return sum(counts.get(kind.value, 0) for kind in LOST) / total if total else 0.0


def score(trial: Trial, slo_pause_s: float, allowed: Allowed) -> Score:
    """The trial's worth."""
    if trial.status is TrialStatus.CRASHED:
        return CRASHED
    pause = trial.worst_pause_s
    # A run that was stopped early says nothing of TTFTs, and what it never sent was not lost; its pause rules
    # it out anyway.
    cut = trial.is_bound
    return Score(
        long_ttft_s=PENALTY_S if cut or trial.long_ttft_p95_s is None else trial.long_ttft_p95_s,
        pause=1.0 if pause is None else pause / slo_pause_s - 1.0,
        lost=0.0 if cut else (lost_rate(trial.counts) - allowed.lost_rate) / _LOST_UNIT,
        short=0.0 if cut else _short(trial.short_ttft_p95_s, allowed.short_ttft_s),
        crash=0.0,
    )


def _short(ttft_s: float | None, limit_s: float | None) -> float:
    return 0.0 if ttft_s is None or not limit_s else ttft_s / limit_s - 1.0
