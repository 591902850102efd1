"""Drawing which knobs mattered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.html_report.evidence import Evidence
from tuner.html_report.figures import Figure, Table, axis, legend
from tuner.html_report.importance import LEAST_CONFIGS, Importance, Sample, knob_importance

_BAR_PX = 46


def importance_figure(evidence: Evidence) -> Figure | str:
    """Simulated configs and live ones apart, whichever are enough; or in words why there is none."""
    live = [
        Sample(t.config.to_mapping(), t.worst_pause_s, None if t.is_bound else t.long_ttft_p95_s)
        for t in evidence.trials
        if t.is_complete or t.is_bound
    ]
    simulated = [Sample(p.config, p.worst_pause_s, p.long_ttft_p95_s) for p in evidence.predictions]
    for samples, source in ((live, "live"), (simulated, "simulated")):
        found = knob_importance(samples)
        if found is not None:
            return _figure(found, source, len(live))
    return (
        f"Too few configs to tell: {len(live)} ran live and {len(simulated)} in the simulator, "
        f"and {LEAST_CONFIGS} of either kind are needed that ran to their end."
    )


def _figure(found: Importance, source: str, num_live: int) -> Figure:
    names = sorted(
        set(found.long_ttft) | set(found.worst_pause),
        key=lambda name: max(found.long_ttft.get(name, 0.0), found.worst_pause.get(name, 0.0)),
    )
    data = [
        _bars("worst pause (the constraint)", names, found.worst_pause, "var(--bad)"),
        _bars("long TTFT (the objective)", names, found.long_ttft, "var(--live)"),
    ]
    few = "" if source == "live" else f" Live runs are too few to tell (n = {num_live})."
    rows = [[name, _share(found.long_ttft, name), _share(found.worst_pause, name)] for name in names[::-1]]
    told = "; ".join(f"{name}: {ttft} of the long TTFT, {pause} of the pause" for name, ttft, pause in rows)
    height = _BAR_PX * len(names) + 90
    return Figure(
        name="knobs",
        alt=f"Importance of each knob. {told}.",
        data=data,
        layout={
            "barmode": "group",
            "xaxis": axis("", tickformat=".0%", range=[0, 1]),
            "yaxis": axis("", fixedrange=True, ticksuffix=" "),
            "legend": legend(40, height) | {"traceorder": "reversed"},
        },
        height=height,
        caption=f"What getting among the best tenth depended on (PED-ANOVA, by Optuna), of "
        f"{found.num_configs[1]} {source} configs; {found.num_configs[0]} of them have a TTFT.{few}",
        table=Table(headers=["knob", "long TTFT", "worst pause"], rows=rows, title="importance"),
    )


def _bars(name: str, names: Sequence[str], shares: Any, colour: str) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": name, "y": list(names),
        "x": [shares.get(knob, 0.0) for knob in names], "marker": {"color": colour},
        "hovertemplate": "%{y}: %{x:.0%}<extra></extra>",
    }  # fmt: skip


def _share(shares: Any, name: str) -> str:
    return f"{shares[name]:.0%}" if name in shares else "–"
