"""The report as one HTML file that loads nothing."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from tuner.html_report.evidence import Evidence
from tuner.html_report.figures import Figure
from tuner.html_report.front import front
from tuner.html_report.history import accuracy, history
from tuner.html_report.knobs import importance_figure
from tuner.html_report.markup import figure, pair, paragraph, section, text
from tuner.html_report.sections import (
    lanes_section,
    repeat_section,
    trials_section,
    verdict,
)
from tuner.store.studies import now

_HERE = Path(__file__).parent


def page(evidence: Evidence, db_option: str = "") -> str:
    """The whole file.

    Args:
        db_option: what `--db` has to say in the commands that repeat it; empty for the usual place. It holds
            no password, which does not belong into a file that is passed on.
    """
    lanes, lane_figures = lanes_section(evidence)
    knobs, predicted = importance_figure(evidence), accuracy(evidence)
    fronts, searches = [front(evidence)], [history(evidence)]
    body = [
        verdict(evidence),
        section("front", "The front", *map(figure, fronts)),
        lanes,
        section("knobs", "Which knobs mattered", _shown(knobs)),
        section("history", "The search", *map(figure, searches)),
        section("accuracy", "Predicted and measured", _predictions(predicted)),
        trials_section(evidence),
        repeat_section(evidence, db_option),
    ]
    drawn = [*fronts, *lane_figures, *([knobs] if isinstance(knobs, Figure) else []), *searches, *predicted]
    return _filled("".join(body), drawn, evidence.study.name)


def _predictions(drawn: Sequence[Figure]) -> str:
    return pair(drawn) if drawn else paragraph("The simulator said nothing of a run that came to its end.")


def _shown(content: Figure | str) -> str:
    return paragraph(content) if isinstance(content, str) else figure(content)


def _filled(body: str, drawn: Sequence[Figure], study: str) -> str:
    template = Template((_HERE / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=text(f"{study} · Evenflow"),
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        body=body,
        figures=_embedded({one.name: one.to_mapping() for one in drawn}),
        plotly=_packed(get_plotlyjs()),
        script=(_HERE / "page.js").read_text(encoding="utf-8"),
        version=version("evenflow"),
        made=f"{now()[:16].replace('T', ' ')} UTC",
    )


def _embedded(values: Mapping[str, Any]) -> str:
    """JSON that ends no script element early, whatever it holds."""
    return json.dumps(values, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _packed(source: str) -> str:
    """Plotly is 4.8 MB; packed it is 2 MB, and every browser since 2023 unpacks it."""
    return base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()
