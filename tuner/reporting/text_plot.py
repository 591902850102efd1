"""A scatter plot in text, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MARGIN = 9


@dataclass(frozen=True, slots=True)
class Mark:
    """A point; of two in one place the later one shows. Both values above zero."""

    x: float
    y: float
    symbol: str


def text_plot(
    marks: Sequence[Mark], *, limit_x: float, titles: tuple[str, str], width: int = 60, height: int = 14
) -> list[str]:
    """Lines of text; none without a mark.

    Args:
        limit_x: a dotted line is drawn there.
        titles: of the horizontal and the vertical axis.
        width, height: of the area between the axes, in characters.
    """
    if not marks:
        return []
    across = _Scale.of([*(mark.x for mark in marks), limit_x], width)
    up = _Scale.of([mark.y for mark in marks], height)
    area = [[" "] * width for _ in range(height)]
    for row in area:
        row[across.place(limit_x)] = "┊"
    for mark in marks:
        area[height - 1 - up.place(mark.y)][across.place(mark.x)] = mark.symbol
    rows = ["".join(row).rstrip() for row in area]
    labels = {0: f"{up.high:.3g} s", height - 1: f"{up.low:.3g} s"}
    lines = [f"{labels.get(n, ''):>{_MARGIN}} │{row}" for n, row in enumerate(rows)]
    return [f"{titles[1]:>{_MARGIN}}", *lines, *_foot(across, limit_x, titles[0], width)]


def _foot(across: _Scale, limit_x: float, title: str, width: int) -> list[str]:
    ends, limit = (f"{across.low:.3g} s", f"{across.high:.3g} s"), f"{limit_x:g} s"
    labels = [" "] * width
    for text, at in ((ends[0], 0), (ends[1], width - len(ends[1])), (limit, across.place(limit_x) - 2)):
        start = min(max(0, at), width - len(text))
        if all(letter == " " for letter in labels[max(0, start - 1) : start + len(text) + 1]):
            labels[start : start + len(text)] = text
    indent = " " * (_MARGIN + 1)
    return [f"{indent}└{'─' * width}", f"{indent} {''.join(labels)}", f"{indent} {title:>{width}}"]


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    size: int

    @classmethod
    def of(cls, values: Sequence[float], size: int) -> _Scale:
        low, high = min(values), max(values)
        return cls(low, high, size) if high > low else cls(low / 1.1, high * 1.1, size)

    def place(self, value: float) -> int:
        """The character that stands for the value, from 0 on."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return min(self.size - 1, max(0, round(share * (self.size - 1))))
