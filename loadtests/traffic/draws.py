"""Lengths and instants drawn from their distributions; the same generator state gives the same ones."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from statistics import NormalDist

from loadtests.traffic.profile import Arrivals, Length


def offsets(arrivals: Arrivals, rate: float, window: float, rng: random.Random) -> list[float]:
    """Instants of arrival within a window, ascending, both in the profile's time unit; not of lanes.

    Args:
        rate: of a random process.
    """
    if arrivals.process == "at":
        drawn = [time + rng.uniform(-1, 1) * arrivals.jitter for time in arrivals.times]
    elif arrivals.process == "burst":
        drawn = list(_burst_offsets(arrivals, window, rng))
    else:
        drawn = list(_gamma_offsets(arrivals, rate, window, rng))
    return sorted(max(0.0, offset) for offset in drawn if offset < window)


def num_expected(arrivals: Arrivals, rate: float, window: float) -> float:
    """About how many instants `offsets` gives."""
    if arrivals.process == "at":
        return len(arrivals.times)
    return arrivals.count * (window / arrivals.every + 1) if arrivals.process == "burst" else rate * window


def draw(length: Length, rng: random.Random) -> int:
    """One length from its distribution, which is not `auto`."""
    if length.kind == "fixed":
        return int(length.value)
    if length.kind == "uniform":
        return rng.randint(length.low, length.high)
    drawn = round(length.value * math.exp(rng.gauss(0.0, length.sigma)))
    return min(max(drawn, length.low), length.high)


def mean(length: Length) -> float:
    """Of the numbers that `draw` gives, but for their rounding."""
    if length.kind == "fixed":
        return length.value
    if length.kind == "uniform":
        return (length.low + length.high) / 2
    if not length.sigma:
        return min(max(length.value, length.low), length.high)
    spread, centre = NormalDist(0.0, length.sigma), math.log(length.value)
    low, high = math.log(length.low) - centre, math.log(length.high) - centre
    shift = length.sigma**2
    between = spread.cdf(high - shift) - spread.cdf(low - shift)
    cut = length.low * spread.cdf(low) + length.high * (1.0 - spread.cdf(high))
    return cut + length.value * math.exp(shift / 2) * between


def longest(length: Length) -> int:
    return int(length.value) if length.kind in ("fixed", "auto") else length.high


def _burst_offsets(arrivals: Arrivals, window: float, rng: random.Random) -> Iterator[float]:
    for burst in range(math.ceil(window / arrivals.every)):
        for _ in range(arrivals.count):
            yield (burst + 0.25) * arrivals.every + rng.random() * arrivals.jitter


def _gamma_offsets(arrivals: Arrivals, rate: float, window: float, rng: random.Random) -> Iterator[float]:
    shape = 1.0 / arrivals.cv**2  # a gamma renewal process; cv 1 is Poisson
    offset = rng.gammavariate(shape, 1.0 / (rate * shape))
    while offset < window:
        yield offset
        offset += rng.gammavariate(shape, 1.0 / (rate * shape))
