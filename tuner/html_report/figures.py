"""A figure as plain values: what Plotly draws, and what is said to those who do not see it.

Colours are written `var(--name)` and become the page's own when it is shown, in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.reporting.terminal import in_seconds
from tuner.search_space import describe
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial

# Ticks of a logarithmic axis, by how much it spans at most.
_TICKS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (2.5, (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0)),
    (12.0, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)),
    (math.inf, (1.0, 2.0, 5.0)),
)
# Values that span less than this are easier to read on a linear axis.
_LOG_RATIO = 2.5
_PAD = 1.2

KINDS = {
    TrialKind.BASELINE: "chunking off",
    TrialKind.RULE: "rule of thumb",
    TrialKind.SEARCH: "live trial",
    TrialKind.CONFIRM: "confirmation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Numbers for those who read them. A cell that starts with `!` is marked as bad."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One drawing.

    Attributes:
        alt: what it shows, in words.
        title: above it; empty where its section's is enough.
        height: in pixels.
        table: the same in numbers; None when another table of the page has them.
    """

    name: str
    alt: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int
    title: str = ""
    caption: str = ""
    table: Table | None = field(default=None)

    def to_mapping(self) -> dict[str, Any]:
        """What Plotly is given."""
        return {"data": self.data, "layout": _LAYOUT | self.layout | {"height": self.height}}


_AXIS = {
    "gridcolor": "var(--line)",
    "linecolor": "var(--line)",
    "zeroline": False,
    "automargin": True,
    "title": {"standoff": 8},
}


def legend(below_px: int, height: int) -> dict[str, Any]:
    """A legend so far below the axes."""
    return {"orientation": "h", "y": -below_px / height, "yanchor": "top", "x": 0, "font": {"size": 12}}


_LAYOUT: dict[str, Any] = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--ink)"},
    "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
    "hoverlabel": {"align": "left", "bgcolor": "var(--card)", "font": {"color": "var(--ink)"}},
    "hovermode": "closest",
}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis of a figure."""
    return {**_AXIS, "title": {"text": title, "standoff": 8}, **more}


def seconds_axis(
    title: str, values: Iterable[float | None], always_log: bool = False, **more: Any
) -> dict[str, Any]:
    """An axis of seconds, logarithmic when the values span much."""
    seen = [value for value in values if value is not None and value > 0]
    low, high = min(seen, default=0.1), max(seen, default=1.0)
    if high / low < _LOG_RATIO and not always_log:
        return axis(title, ticksuffix=" s", rangemode="tozero", **more)
    low, high = low / _PAD, high * _PAD
    ticks = _log_ticks(low, high)
    return axis(
        title,
        type="log",
        range=[math.log10(low), math.log10(high)],
        tickvals=ticks,
        ticktext=[f"{tick:g} s" for tick in ticks],
        **more,
    )


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = next(steps for ratio, steps in _TICKS if high / low <= ratio)
    ticks = (round(step * 10.0**decade, 12) for decade in decades for step in steps)
    return [tick for tick in ticks if low <= tick <= high]


def limit_line(axis_name: str, value: float, label: str) -> dict[str, Any]:
    """A line across the whole figure at the SLO. Args: axis_name: `x`, `y`, `x2`, …"""
    across = axis_name.startswith("x")
    place = {"textposition": "end", "textangle": 0, "xanchor": "left"} if across else {"textposition": "end"}
    ends = (
        {"xref": axis_name, "x0": value, "x1": value, "yref": "paper", "y0": 0, "y1": 1}
        if across
        else {"yref": axis_name, "y0": value, "y1": value, "xref": "paper", "x0": 0, "x1": 1}
    )
    return {
        "type": "line",
        **ends,
        "line": {"color": "var(--bad)", "width": 1.5, "dash": "dash"},
        "label": {"text": label, "font": {"color": "var(--bad)", "size": 12}, **place},
    }


def about(trial: Trial) -> str:
    """What a trial's mark says when it is pointed at."""
    kind = KINDS.get(trial.kind, trial.kind.value)
    lines = [f"<b>{describe(trial.config)}</b>", f"trial {trial.number}, {kind}, seed {trial.seed}"]
    pause = in_seconds(trial.worst_pause_s)
    if trial.is_bound:
        lines.append(f"stopped early: a stream paused {pause}, at least")
    else:
        lines.append(f"long TTFT {ttft(trial)}, worst pause {pause}")
    if trial.predicted_worst_pause_s is not None:
        predicted = in_seconds(trial.predicted_long_ttft_s), in_seconds(trial.predicted_worst_pause_s)
        lines.append("predicted {} and {}".format(*predicted))
    if trial.shed_rate:
        lines.append(f"{trial.shed_rate:.0%} refused")
    return "<br>".join(lines)


def ttft(trial: Trial) -> str:
    """A long TTFT in words: unbounded when a long prompt was lost, unknown when the run was stopped."""
    if trial.is_bound:
        return "–"
    if trial.long_ttft_p95_s is None and trial.status is TrialStatus.DONE:
        return "∞"
    return in_seconds(trial.long_ttft_p95_s)
