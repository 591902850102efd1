"""What a simulator leaves out, learned from the live runs beside which it stood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from engine.core.config import PrefillPolicy

# How many runs' worth "the simulator is right" weighs against the runs there are; and how much what all
# policies have in common weighs against a policy's own runs.
_TRUST = 1.0
_SHARED = 2.0
# One run that another program held up must not switch the simulator off.
_MOST = math.log(2.0)


@dataclass(frozen=True, slots=True)
class Pair:
    """One metric of one live run (TTFT, pause; any unit) and of its simulation; both above zero."""

    policy: PrefillPolicy
    predicted: float
    measured: float

    @property
    def log_ratio(self) -> float:
        return max(-_MOST, min(_MOST, math.log(self.measured / self.predicted)))


def correction(pairs: Sequence[Pair], policy: PrefillPolicy) -> float:
    """What to multiply a prediction for a config of this policy by; 1 without any pairs.

    The median ratio, in logarithms, drawn towards 1 by n / (n + 1); then a policy's own median, drawn
    towards that of all by n / (n + 2). Between 1/2 and 2.

    Source: shrinkage towards the grand mean (James & Stein, 1961), with fixed weights, since a study has a
    dozen pairs, and with medians, since one may be an accident.
    """
    everyone = _shrunk([pair.log_ratio for pair in pairs], 0.0, _TRUST)
    own = [pair.log_ratio for pair in pairs if pair.policy is policy]
    return math.exp(_shrunk(own, everyone, _SHARED))


def _shrunk(values: Sequence[float], towards: float, weight: float) -> float:
    if not values:
        return towards
    return towards + len(values) / (len(values) + weight) * (median(values) - towards)


def corrected_errors(pairs: Sequence[Pair]) -> list[float]:
    """|corrected / measured − 1| of each pair, corrected by the others: what to expect of the next run."""
    return [
        abs(pair.predicted * correction([*pairs[:i], *pairs[i + 1 :]], pair.policy) / pair.measured - 1.0)
        for i, pair in enumerate(pairs)
    ]
