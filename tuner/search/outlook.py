"""What to expect of a config: the simulator's word, corrected by the live runs beside which it stood.

The logarithm of measured ÷ predicted is modelled as a Gaussian process over how large the predicted pause is
and which policy made it: a cost model is wrong in a way that changes slowly with the size of a step. How far
runs of the same config lie apart is fitted along with it, and is what safety margins are made of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from engine.core.config import SchedulerConfig
from tuner.search_space import num_shared

Array = npt.NDArray[np.float64]

# Standard deviations of the logarithm of measured ÷ predicted before anything was measured: of what all
# configs have in common, of its slope over the predicted pause, of a policy, of a stretch of sizes, of the
# value of each knob beside the chunking, and of one config. Cost models wrong by up to 40 % a term gave such
# (our simulated searches, November 2026).
_COMMON, _SLOPE, _POLICY, _STRETCH, _KNOB, _OWN = 0.3, 0.15, 0.1, 0.06, 0.05, 0.02
# Sizes whose logarithms lie this far apart (half as large again) tell little of one another: chosen, not
# measured.
_STRETCH_LENGTH = 0.4
# How far apart runs of one config lie: candidates, and what is thought likely before the first run. Worst
# pauses of repeated runs on two CPU cores: 4 to 6 % (our measurement, November 2026); that it may as well be
# half as large again or smaller was chosen.
_SPREADS = (0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3)
_USUAL_SPREAD, _USUAL_FACTOR = 0.04, 0.5
# Nearly every fresh window lies below the median and so many spreads; more than 2, for stalls are rare and
# long. With 2.0 one winner in 17 broke its SLO in more than 2 of 50 windows, with 2.5 one in 25 (our
# simulated searches, November 2026).
_NEARLY_ALL = 2.5
# A run so many standard deviations off the others had an accident, or by a hair missed what others met: it
# counts for less. Chosen, not measured: one normal run in 80 lies beyond, and few refits settle.
_ODD, _REFITS = 2.5, 4
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the space of predictions a config lies.

    Attributes:
        size: logarithm of its predicted pause in SLOs.
    """

    config: SchedulerConfig
    size: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One live run: measured ÷ predicted at its place.

    Attributes:
        is_bound: the run was stopped early: the ratio is at least this.
        is_own: it was predicted by nothing but itself: this says nothing of how far runs lie apart.
    """

    place: Place
    ratio: float
    is_bound: bool = False
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """A duration that is not known for certain.

    Attributes:
        median_s: of the runs to come.
        doubt: how little the median is known, as the standard deviation of its logarithm.
        spread: of runs around it, as the standard deviation of their logarithm.
    """

    median_s: float
    doubt: float
    spread: float

    def chance_below(self, limit_s: float) -> float:
        """The probability that nearly every run stays below the limit."""
        room = math.log(limit_s / max(self.median_s, 1e-9)) - _NEARLY_ALL * self.spread
        return _NORMAL.cdf(room / max(self.doubt, 1e-9))


class Outlook:
    """Corrects one metric's predictions by what was seen of it."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        whole = [one for one in seen if not one.is_bound]
        self._learn(whole)
        # A bound says something only when it lies above what the whole runs lead to expect.
        told = [one for one in seen if one.is_bound and math.log(one.ratio) > self._correct(one.place)[0]]
        if told:
            self._learn([*whole, *told])

    def expect(self, place: Place, predicted_s: float) -> Expected:
        """What runs of the config will come to."""
        mean, doubt = self._correct(place)
        return Expected(predicted_s * math.exp(mean), doubt, self.spread)

    def surprise(self, seen: Seen) -> float:
        """How far the run lies above what is expected of it, in standard deviations."""
        mean, doubt = self._correct(seen.place)
        return (math.log(seen.ratio) - mean) / math.hypot(doubt, self.spread)

    def _learn(self, seen: Sequence[Seen]) -> None:
        self._places = [one.place for one in seen]
        self._ratios = np.array([math.log(one.ratio) for one in seen])
        self._shared = _covariance(self._places, self._places)
        self._weights = np.ones(len(seen))
        self._told = np.array([not one.is_own for one in seen], dtype=bool)
        for _ in range(_REFITS):
            self._fit()
            odd = np.maximum(np.abs(self._residuals()), 1.0) ** 2
            if odd.max(initial=0.0) <= _ODD**2:
                return
            self._weights = np.where(odd > _ODD**2, self._weights * odd, self._weights)

    def _fit(self) -> None:
        self.spread = max(_SPREADS, key=self._likelihood)
        self._solved = np.linalg.inv(self._noisy(self.spread))

    def _residuals(self) -> Array:
        """How far each run lies above what all others lead to expect, in standard deviations."""
        residuals: Array = (self._solved @ self._ratios) / np.sqrt(np.diag(self._solved))
        return residuals

    def _noisy(self, spread: float) -> Array:
        noisy: Array = self._shared + spread**2 * np.diag(self._weights)
        return noisy

    def _likelihood(self, spread: float) -> float:
        """Logarithm of how likely the spread is, given what was seen and what is usual."""
        unusual = math.log(spread / _USUAL_SPREAD) / _USUAL_FACTOR
        if not self._told.any():
            return -(unusual**2) / 2
        noisy, ratios = self._noisy(spread)[np.ix_(self._told, self._told)], self._ratios[self._told]
        _, log_determinant = np.linalg.slogdet(noisy)
        misfit = float(ratios @ np.linalg.solve(noisy, ratios))
        return -(misfit + float(log_determinant) + unusual**2) / 2

    def _correct(self, place: Place) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of measured ÷ predicted there."""
        alone = float(_covariance([place], [place])[0, 0])
        if not self._places:
            return 0.0, math.sqrt(alone)
        shared = _covariance([place], self._places)[0]
        weights = shared @ self._solved
        return float(weights @ self._ratios), math.sqrt(max(alone - float(weights @ shared), 1e-12))


def _covariance(one: Sequence[Place], other: Sequence[Place]) -> Array:
    return np.array([[_alike(a, b) for b in other] for a in one]).reshape(len(one), len(other))


def _alike(a: Place, b: Place) -> float:
    value = _COMMON**2 + _SLOPE**2 * a.size * b.size
    if a.config.prefill_policy is b.config.prefill_policy:
        near = math.exp(-(((a.size - b.size) / _STRETCH_LENGTH) ** 2) / 2)
        value += _POLICY**2 + _STRETCH**2 * near
    value += _KNOB**2 * num_shared(a.config, b.config)
    return value + _OWN**2 * (a.config == b.config)
