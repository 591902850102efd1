"""The front: long TTFT against worst pause, every trial there was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.core.config import parse_config
from tuner.html_report.evidence import Evidence
from tuner.html_report.figures import KINDS, Figure, about, axis, legend, limit_line, seconds_axis
from tuner.reporting.findings import config_of, name_of, ttft_title
from tuner.reporting.terminal import in_seconds
from tuner.search_space import describe
from tuner.store.models import PredictionRow, TrialKind, TrialStatus
from tuner.trials import Trial

# Where marks without a TTFT are: beyond the top of the axis.
_STRIP = {"yaxis": "y2"}
_HEIGHT = 520
MARKS: dict[TrialKind, dict[str, Any]] = {
    TrialKind.BASELINE: {"symbol": "square", "size": 12, "color": "var(--ink)"},
    TrialKind.RULE: {"symbol": "diamond", "size": 11, "color": "var(--rule)"},
    TrialKind.SEARCH: {"symbol": "circle", "size": 9, "color": "var(--live)"},
    TrialKind.CONFIRM: {"symbol": "star-open", "size": 11, "color": "var(--good)"},
}
OTHER_MARK = {"symbol": "hexagon", "size": 11, "color": "var(--live)"}
_OUTLINE = {"width": 1, "color": "var(--paper)"}


def front(evidence: Evidence) -> Figure:
    """Every trial, with what is known of it: a run that was stopped early has a pause only."""
    trials = [trial for trial in evidence.trials if trial.worst_pause_s is not None and counts(trial)]
    data = [
        *_simulated(evidence.predictions),
        *_edge([trial for trial in trials if trial.seed == evidence.study.seed]),
        *_live(trials),
        *_winner(evidence),
    ]
    xs = [
        *(t.worst_pause_s for t in trials),
        *(p.worst_pause_s for p in evidence.predictions),
        evidence.slo_s,
    ]
    ys = [*(t.long_ttft_p95_s for t in trials if not t.is_bound)]
    ys += [p.long_ttft_p95_s for p in evidence.predictions]
    layout = {
        "xaxis": seconds_axis("worst pause of any stream", xs),
        "yaxis": seconds_axis(ttft_title(evidence.result), ys, domain=[0, 0.87]),
        "yaxis2": axis(
            "", domain=[0.91, 1], range=[0, 1], tickvals=[0.5], ticktext=["stopped"], fixedrange=True
        ),
        "margin": {"l": 10, "r": 10, "t": 24, "b": 10},
        "legend": legend(70, _HEIGHT),
        "shapes": [limit_line("x", evidence.slo_s, f" SLO {evidence.slo_s:g} s")],
    }
    return Figure(
        name="front",
        alt=_alt(evidence, trials),
        data=data,
        layout=layout,
        height=_HEIGHT,
        caption=_caption(evidence),
    )


def counts(trial: Trial) -> bool:
    """Whether its numbers say something of its config."""
    return trial.status in (TrialStatus.DONE, TrialStatus.ABORTED)


def _simulated(predictions: Sequence[PredictionRow]) -> list[dict[str, Any]]:
    known = [p for p in predictions if p.long_ttft_p95_s is not None and p.worst_pause_s is not None]
    cut = [p for p in predictions if p.long_ttft_p95_s is None and p.worst_pause_s is not None]
    mark = {"color": "var(--simulated)", "size": 6, "opacity": 0.55}
    shown = [
        _marks("simulated", [(p.worst_pause_s, p.long_ttft_p95_s, _said(p)) for p in known], mark),
        _marks(
            "simulated, stopped early",
            [(p.worst_pause_s, 0.5, _said(p)) for p in cut],
            mark | {"symbol": "triangle-right-open", "opacity": 0.35},
            **_STRIP,
            showlegend=False,
        ),
    ]
    return [trace for trace in shown if trace["x"]]


def _said(prediction: PredictionRow) -> str:
    name, pause = describe(parse_config(prediction.config)), in_seconds(prediction.worst_pause_s)
    if prediction.aborted:
        return f"<b>{name}</b><br>simulated: stopped at a pause of {pause}"
    return (
        f"<b>{name}</b><br>simulated: long TTFT {in_seconds(prediction.long_ttft_p95_s)}, worst pause {pause}"
    )


def _live(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    traces = []
    for kind in TrialKind:
        mark = {"line": _OUTLINE, **MARKS.get(kind, OTHER_MARK)}
        mine = [trial for trial in trials if trial.kind is kind]
        whole = [t for t in mine if not t.is_bound and t.long_ttft_p95_s is not None]
        unknown = [t for t in mine if t.is_bound or t.long_ttft_p95_s is None]
        name = KINDS.get(kind, kind.value)
        traces.append(_marks(name, [(t.worst_pause_s, t.long_ttft_p95_s, about(t)) for t in whole], mark))
        traces.append(
            _marks(
                f"{name}, no TTFT",
                [(t.worst_pause_s, 0.5, about(t)) for t in unknown],
                mark | {"symbol": ["triangle-right" if t.is_bound else "x" for t in unknown]},
                **_STRIP,
                showlegend=not whole,
            )
        )
    return [trace for trace in traces if trace["x"]]


def _edge(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The live runs on the study's traffic that no other beats in both."""
    points = sorted(
        (t.worst_pause_s or 0.0, t.long_ttft_p95_s)
        for t in trials
        if t.is_complete and t.long_ttft_p95_s is not None
    )
    edge: list[tuple[float, float]] = []
    for pause, ttft in points:
        if not edge or ttft < edge[-1][1]:
            edge.append((pause, ttft))
    if len(edge) < 2:
        return []
    line = {"color": "var(--live)", "width": 1.5, "shape": "hv"}
    xs, ys = zip(*edge, strict=True)
    return [
        {
            "type": "scatter", "mode": "lines", "name": "front", "x": list(xs), "y": list(ys), "line": line,
            "opacity": 0.6, "hoverinfo": "skip",
        }
    ]  # fmt: skip


def _winner(evidence: Evidence) -> list[dict[str, Any]]:
    winner = evidence.result.get("winner")
    if not winner or winner["long_ttft_p95_s"] is None:
        return []
    said = f"<b>winner: {name_of(winner)}</b><br>{winner['replicates']} confirmations together: long TTFT "
    said += f"{in_seconds(winner['long_ttft_p95_s'])}, worst pause {in_seconds(winner['worst_pause_s'])}"
    mark = {
        "symbol": "star",
        "size": 20,
        "color": "var(--good)",
        "line": {"width": 1.5, "color": "var(--paper)"},
    }
    return [_marks("winner", [(winner["worst_pause_s"], winner["long_ttft_p95_s"], said)], mark)]


def _marks(
    name: str, points: Sequence[tuple[Any, Any, str]], marker: dict[str, Any], **more: Any
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points], "hovertext": [said for _, _, said in points],
        "hovertemplate": "%{hovertext}<extra></extra>", "marker": marker, **more,
    }  # fmt: skip


def _alt(evidence: Evidence, trials: Sequence[Trial]) -> str:
    kept = sum(t.is_complete and (t.worst_pause_s or 0.0) <= evidence.slo_s for t in trials)
    text = f"{len(trials)} live runs, {kept} of them within the SLO of {evidence.slo_s:g} s"
    if winner := evidence.result.get("winner"):
        ttft, pause = in_seconds(winner["long_ttft_p95_s"]), in_seconds(winner["worst_pause_s"])
        text += (
            f"; the winner, {describe(config_of(winner))}, is at a long TTFT of {ttft} and a pause of {pause}"
        )
    return text + ". The table of every trial has the numbers."


def _caption(evidence: Evidence) -> str:
    parts = ["Down and to the left is better; right of the dashed line a stream freezes longer than allowed."]
    if any(trial.is_bound for trial in evidence.trials):
        parts.append(
            "A triangle in the upper strip is a run that was stopped early: it pauses at least so long."
        )
    left_out = [t for t in evidence.trials if t.worst_pause_s is None or not counts(t)]
    if left_out:
        runs = "1 run" if len(left_out) == 1 else f"{len(left_out)} runs"
        parts.append(f"Not drawn: {runs} (crashed, spoiled, lost or set aside).")
    return " ".join(parts)
