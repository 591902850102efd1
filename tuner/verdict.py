"""Judging a config on a live server, stream by stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Wald's sequential test of 1 % against 10 % bad streams with errors of 5 % and 10 %. Each step is the
# logarithm of the likelihood ratio. 24 good streams keep a config; 2 bad among the first 19 take it back.
# Source: A. Wald, "Sequential tests of statistical hypotheses", Ann. Math. Statist. 16 (1945).
BAD_STEP = 2.30
GOOD_STEP = -0.095
TAKE_BACK_AT = 2.89
KEEP_AT = -2.25


class Decision(StrEnum):
    """What the streams seen so far say."""

    UNDECIDED = "undecided"
    KEEP = "kept"
    TAKE_BACK = "taken back"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Streams that lived under one config from their first token to their last.

    Attributes:
        score: between `KEEP_AT` and `TAKE_BACK_AT` while undecided.
    """

    num_good: int = 0
    num_bad: int = 0
    worst_pause_s: float = 0.0
    score: float = 0.0

    @property
    def num_streams(self) -> int:
        return self.num_good + self.num_bad

    @property
    def decision(self) -> Decision:
        if self.score >= TAKE_BACK_AT:
            return Decision.TAKE_BACK
        return Decision.KEEP if self.score <= KEEP_AT else Decision.UNDECIDED

    def add(self, worst_pause_s: float, slo_pause_s: float) -> Evidence:
        """With one more stream."""
        bad = worst_pause_s > slo_pause_s
        return Evidence(
            self.num_good + (not bad),
            self.num_bad + bad,
            max(self.worst_pause_s, worst_pause_s),
            self.score + (BAD_STEP if bad else GOOD_STEP),
        )
