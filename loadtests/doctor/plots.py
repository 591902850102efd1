"""Plots in a line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = " ▁▂▃▄▅▆▇█"


def bars(counts: Sequence[float]) -> str:
    """A bar a count, the highest one full; whatever is above zero is seen."""
    highest = max(counts, default=0)
    if not highest:
        return _BARS[0] * len(counts)
    return "".join(_BARS[max(round(count / highest * 8), int(count > 0))] for count in counts)


def doublings(per_bin: Sequence[int]) -> str:
    """Bars of counts up to 1, 2, 4, 8 …, between the ends of those that are not empty."""
    first = next((number for number, count in enumerate(per_bin) if count), 0)
    return f"{short(2**first)} {bars(per_bin[first:])} {short(2 ** (len(per_bin) - 1))}"


def short(number: float) -> str:
    """A count in few characters: 512, 8k, 2M."""
    for unit, sign in ((1 << 20, "M"), (1 << 10, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{sign}"
    return f"{number:g}"
