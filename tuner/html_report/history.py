"""How the search went, and how right the simulator was."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from tuner.html_report.evidence import Evidence
from tuner.html_report.figures import KINDS, Figure, about, axis, legend, limit_line, seconds_axis
from tuner.html_report.front import MARKS, OTHER_MARK, counts
from tuner.reporting.terminal import in_seconds
from tuner.search.best import improvements
from tuner.store.models import TrialKind
from tuner.trials import Trial

_BAND = 0.2
_HEIGHT = 460

_Pair = tuple[Trial, float, float]  # and what was predicted and measured


def history(evidence: Evidence) -> Figure:
    """Worst pause and long TTFT of one live run after another, and the best so far."""
    trials = [trial for trial in evidence.trials if trial.worst_pause_s is not None and counts(trial)]
    whole = [trial for trial in trials if not trial.is_bound and trial.long_ttft_p95_s is not None]
    data = []
    for kind in TrialKind:
        mine = [trial for trial in trials if trial.kind is kind]
        data.append(_row(kind, mine, [trial.worst_pause_s for trial in mine], "y", showlegend=bool(mine)))
        timed = [trial for trial in whole if trial.kind is kind]
        data.append(_row(kind, timed, [trial.long_ttft_p95_s for trial in timed], "y2", showlegend=False))
    best = improvements(evidence.trials, evidence.slo_s, evidence.study.seed)
    pauses = [*(trial.worst_pause_s for trial in trials), evidence.slo_s]
    layout = {
        "xaxis": axis("live run", anchor="y2", tickformat="d", **_whole_numbers(trials)),
        "yaxis": seconds_axis("worst pause", pauses, domain=[0.54, 1]),
        "yaxis2": seconds_axis("long TTFT", [t.long_ttft_p95_s for t in whole], domain=[0, 0.46]),
        "shapes": [limit_line("y", evidence.slo_s, f"SLO {evidence.slo_s:g} s")],
        "legend": legend(64, _HEIGHT),
    }
    return Figure(
        name="history",
        alt=f"{len(trials)} live runs in order; {_best_words(best)} The table of trials has the numbers.",
        data=[trace for trace in [*data, *_line(best, trials)] if trace["x"]],
        layout=layout,
        height=_HEIGHT,
        caption="The line is the shortest long TTFT so far of a run on the study's own traffic that kept the "
        "SLO and made nobody else pay. A triangle is a run that was stopped early.",
    )


def _whole_numbers(trials: Sequence[Trial]) -> dict[str, Any]:
    """A range with room at both ends, and no ticks between two runs."""
    last = max((trial.number for trial in trials), default=0)
    return {"range": [-0.7, last + 0.7], "tick0": 0, "dtick": max(1, round(last / 10))}


def _row(kind: TrialKind, trials: Sequence[Trial], values: Sequence[Any], yaxis: str, **more: Any) -> Any:
    mark = {**MARKS.get(kind, OTHER_MARK)}
    symbols = ["triangle-up" if trial.is_bound else mark["symbol"] for trial in trials]
    return {
        "type": "scatter", "mode": "markers", "name": KINDS.get(kind, kind.value), "legendgroup": kind.value,
        "x": [trial.number for trial in trials], "y": list(values), "yaxis": yaxis,
        "hovertext": [about(trial) for trial in trials], "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": mark | {"symbol": symbols}, **more,
    }  # fmt: skip


def _best_words(best: Sequence[Trial]) -> str:
    if not best:
        return "none kept the SLO."
    last = best[-1]
    return (
        f"the shortest long TTFT within the SLO is {in_seconds(last.long_ttft_p95_s)}, of run {last.number}."
    )


def _line(best: Sequence[Trial], trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Up to the last run."""
    ends = [(trial.number, trial.long_ttft_p95_s) for trial in best]
    ends += [(trials[-1].number, ends[-1][1])] if ends else []
    line = {"color": "var(--good)", "width": 2, "shape": "hv"}
    return [
        {
            "type": "scatter", "mode": "lines", "name": "best so far", "x": [number for number, _ in ends],
            "y": [ttft for _, ttft in ends], "yaxis": "y2", "line": line, "hoverinfo": "skip",
        }
    ]  # fmt: skip


def accuracy(evidence: Evidence) -> list[Figure]:
    """Predicted against measured, of the long TTFT and of the worst pause; none without a pair."""
    whole = [trial for trial in evidence.trials if trial.is_complete]
    ttfts = _pairs(whole, [(t.predicted_long_ttft_s, t.long_ttft_p95_s) for t in whole])
    pauses = _pairs(whole, [(t.predicted_worst_pause_s, t.worst_pause_s) for t in whole])
    return [
        _predicted(name, pairs) for name, pairs in (("long TTFT", ttfts), ("worst pause", pauses)) if pairs
    ]


def _predicted(name: str, pairs: Sequence[_Pair]) -> Figure:
    values = [value for _, predicted, measured in pairs for value in (predicted, measured)]
    errors = [abs(predicted / measured - 1) for _, predicted, measured in pairs]
    said = f"Median error {median(errors):.0%}, largest {max(errors):.0%}, n = {len(pairs)}."
    return Figure(
        name=f"predicted-{name.replace(' ', '-').lower()}",
        alt=f"Measured against predicted values. {said}",
        title=name[0].upper() + name[1:],
        data=[*_band(values), _dots(pairs)],
        layout={
            "showlegend": False,
            "xaxis": seconds_axis("predicted", values, always_log=True),
            "yaxis": seconds_axis("measured", values, always_log=True),
        },
        height=380,
        caption=f"{said} On the line the simulator was right; the band is 20 % to either side.",
    )


def _pairs(trials: Sequence[Trial], values: Sequence[tuple[float | None, float | None]]) -> list[_Pair]:
    both = zip(trials, values, strict=True)
    return [(trial, predicted, measured) for trial, (predicted, measured) in both if predicted and measured]


def _dots(pairs: Sequence[_Pair]) -> dict[str, Any]:
    marks = [MARKS.get(trial.kind, OTHER_MARK) for trial, _, _ in pairs]
    return {
        "type": "scatter", "mode": "markers", "x": [predicted for _, predicted, _ in pairs],
        "y": [measured for _, _, measured in pairs],
        "hovertext": [about(trial) for trial, _, _ in pairs], "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"symbol": [m["symbol"] for m in marks], "color": [m["color"] for m in marks], "size": 10},
    }  # fmt: skip


def _band(values: Sequence[float]) -> list[dict[str, Any]]:
    ends = [min(values) / 1.5, max(values) * 1.5]
    place = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "x": ends}
    hidden = {"color": "rgba(0,0,0,0)", "width": 0}
    return [
        {**place, "y": [end * (1 - _BAND) for end in ends], "line": hidden},
        {
            **place, "y": [end * (1 + _BAND) for end in ends], "line": hidden,
            "fill": "tonexty", "fillcolor": "var(--band)",
        },
        {**place, "y": ends, "line": {"color": "var(--muted)", "width": 1}},
    ]  # fmt: skip
