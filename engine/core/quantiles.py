"""Order statistics on raw samples, and when they may be printed."""

from __future__ import annotations

import math
from collections.abc import Iterable

_ROUNDING = 1e-9  # keeps 0.95 * 20 from ranking as the 20th sample


def nearest_rank(samples: Iterable[float], q: float) -> float | None:
    """The nearest-rank quantile: always one of the samples; None when there are none.

    Args:
        samples: in any order; +inf is allowed and sorts last.
        q: in (0, 1].
    """
    ordered = sorted(samples)
    if not ordered:
        return None
    return ordered[max(1, math.ceil(q * len(ordered) - _ROUNDING)) - 1]


def supported(q: float, n: int) -> bool:
    """Whether `n` samples are enough to print the quantile `q` as a percentile: n ≥ 10 / (1 − q)."""
    return n * (1.0 - q) >= 10.0 - _ROUNDING


def wilson_interval(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a proportion (95 % by default); (0, 1) when nothing was tried.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22 (1927).
    """
    if n == 0:
        return 0.0, 1.0
    share, spread = successes / n, z * z / n
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
