"""Drawing a run's lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.html_report.figures import Figure, Table, axis, legend
from tuner.html_report.lanes import Lane, LongPause, Run, View
from tuner.reporting.terminal import in_seconds

_LANE_PX = 36
_SERVED = ("completed", "cancelled")


def lanes_figure(name: str, title: str, run: Run, view: View, slo_s: float) -> Figure:
    """A lane a request: tokens as ticks, chunks of its prompt as blocks, long gaps as red bars."""
    by_id = {lane.request_id: lane for lane in run.lanes}
    lanes = [by_id[request_id] for request_id in view.shown if request_id in by_id]
    data = [_blocks(lanes), _ticks(lanes), _gaps(lanes), _losses(lanes)]
    height = _LANE_PX * len(lanes) + 90
    layout = {
        "barmode": "overlay",
        "bargap": 0,
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "xaxis": axis("", range=[view.from_s, view.to_s], ticksuffix=" s", tickangle=0),
        "yaxis": {
            **axis("", fixedrange=True, gridcolor="var(--lane)"),
            "tickvals": list(range(len(lanes))),
            "ticktext": [lane.label for lane in lanes],
            "range": [len(lanes) - 0.4, -0.6],
        },
        "shapes": [_lifetime(y, lane) for y, lane in enumerate(lanes)],
        "legend": legend(36, height),
    }
    return Figure(
        name=name,
        title=f"{title}: {run.name}",
        alt=worst_of(run),
        data=[trace for trace in data if trace["y"]],
        layout=layout,
        height=height,
        caption=worst_of(run),
        table=_table(lanes, slo_s),
    )


def worst_of(run: Run) -> str:
    """The worst pause and its cause, in a sentence."""
    if run.worst is None:
        return "No stream pauses beyond the SLO."
    lane, pause = run.worst
    num = sum(len(lane.pauses) for lane in run.lanes)
    count = "The one long gap" if num == 1 else f"{num} gaps beyond the SLO; the worst"
    return f"{count}: {_length(pause)} on {lane.label}, while {pause.cause}."


def _length(pause: LongPause) -> str:
    return ("at least " if pause.is_open else "") + in_seconds(pause.seconds)


def _table(lanes: Sequence[Lane], slo_s: float) -> Table:
    pauses = [(lane, pause) for lane in lanes for pause in lane.pauses]
    rows = [
        [lane.label, in_seconds(pause.from_s), f"!{_length(pause)}", pause.cause]
        for lane, pause in sorted(pauses, key=lambda pair: -pair[1].seconds)
    ]
    headers = ["stream", "from", "pause", "meanwhile"]
    return Table(headers=headers, rows=rows, title=f"gaps beyond {slo_s:g} s")


def _lifetime(y: int, lane: Lane) -> dict[str, Any]:
    """From arrival to the last token, or to the end of a request that got none."""
    end_s = lane.tokens_s[-1] if lane.tokens_s else lane.ended_at_s
    line = {"color": "var(--simulated)", "width": 1.5}
    return {
        "type": "line",
        "layer": "below",
        "x0": lane.scheduled_at_s,
        "x1": end_s,
        "y0": y,
        "y1": y,
        "line": line,
    }


def _blocks(lanes: Sequence[Lane]) -> dict[str, Any]:
    placed = [(y, lane, chunk) for y, lane in enumerate(lanes) for chunk in lane.chunks]
    said = [
        f"<b>{lane.label}</b><br>{chunk.num_tokens:,} tokens in {in_seconds(chunk.to_s - chunk.from_s)}, "
        f"from token {chunk.start:,} of {lane.prompt_tokens:,}"
        for _, lane, chunk in placed
    ]
    return {
        "type": "bar", "orientation": "h", "name": "chunk of a prompt", "y": [y for y, _, _ in placed],
        "base": [chunk.from_s for _, _, chunk in placed],
        "x": [chunk.to_s - chunk.from_s for _, _, chunk in placed],
        "width": 0.62, "hovertext": said, "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": "var(--chunk)", "line": {"width": 1, "color": "var(--paper)"}},
    }  # fmt: skip


def _ticks(lanes: Sequence[Lane]) -> dict[str, Any]:
    placed = [(y, lane, at_s) for y, lane in enumerate(lanes) for at_s in lane.tokens_s]
    mark = {
        "symbol": "line-ns",
        "size": 11,
        "line": {"width": 1.3, "color": "var(--live)"},
        "color": "var(--live)",
    }
    return {
        "type": "scatter", "mode": "markers", "name": "token", "x": [at_s for _, _, at_s in placed],
        "y": [y for y, _, _ in placed], "marker": mark,
        "hovertext": [lane.label for _, lane, _ in placed],
        "hovertemplate": "%{hovertext}: token at %{x:.3f} s<extra></extra>",
    }  # fmt: skip


def _gaps(lanes: Sequence[Lane]) -> dict[str, Any]:
    placed = [(y, lane, pause) for y, lane in enumerate(lanes) for pause in lane.pauses]
    pauses = [pause for _, _, pause in placed]
    return {
        "type": "bar", "orientation": "h", "name": "gap beyond the SLO", "width": 0.78,
        "y": [y for y, _, _ in placed],
        "base": [pause.from_s for pause in pauses], "x": [pause.seconds for pause in pauses],
        "text": [_label(pause) for pause in pauses],
        "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
        "insidetextfont": {"color": "var(--on-bad)", "size": 10},
        "hovertext": [f"<b>{lane.label}</b><br>pauses {_length(p)}: {p.cause}" for _, lane, p in placed],
        "hovertemplate": "%{hovertext}<extra></extra>", "marker": {"color": "var(--bad)", "opacity": 0.92},
    }  # fmt: skip


def _label(pause: LongPause) -> str:
    """Short enough for a bar."""
    return f"{pause.whose}<br>{pause.num_tokens:,} tok" if pause.num_tokens else "no<br>prompt"


def _losses(lanes: Sequence[Lane]) -> dict[str, Any]:
    """Requests that were not served."""
    lost = [(y, lane) for y, lane in enumerate(lanes) if lane.outcome not in _SERVED]
    return {
        "type": "scatter", "mode": "markers", "name": "not served", "y": [y for y, _ in lost],
        "x": [lane.ended_at_s for _, lane in lost], "hovertext": [lane.outcome for _, lane in lost],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"symbol": "x", "size": 11, "color": "var(--bad)"},
    }  # fmt: skip
