from __future__ import annotations

import base64
import gzip
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from engine.core.config import SchedulerConfig
from tests.tuner.fakes import FakeServer, StudyBench
from tests.tuner.html_report.sim_study import evidence_of, sim_bench
from tuner.errors import Interrupted
from tuner.evaluation.evaluators import Measurement
from tuner.html_report.page import page
from tuner.store.models import TrialKind

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Checks that elements are closed in order, and collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [value for name in ("src", "data", "srcset") if (value := given.get(name))]
        if tag == "link" or (given.get("href") or "#")[0] != "#":
            self.loads.append(str(given.get("href")))
        self.ids += [given["id"] or ""] if "id" in given else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(content: str) -> Reader:
    reader = Reader()
    reader.feed(content)
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    return reader


def figures(content: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', content, re.DOTALL)
    assert found
    drawn: dict[str, Any] = json.loads(found[1])
    return drawn


def words(content: str) -> str:
    body = content[content.index("<main>") : content.index("</main>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page(evidence_of(sim_bench(tmp_path_factory.mktemp("found"))))


def test_it_is_one_file_that_loads_nothing(found: str) -> None:
    assert read(found).loads == []
    packed = re.search(r'id="plotly">(.*?)</script>', found, re.DOTALL)
    assert packed
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(packed[1]))[:100]
    assert found.count("plotly.js v") == 0
    assert len(found) < 2_500_000


def test_every_figure_is_one_that_plotly_knows(found: str) -> None:
    drawn = figures(found)
    assert set(drawn) == {
        "front",
        "before",
        "after",
        "knobs",
        "history",
        "predicted-long-ttft",
        "predicted-worst-pause",
    }
    colours = re.compile(r"var\(--[\w-]+\)")
    for figure in drawn.values():
        go.Figure(json.loads(colours.sub("#123456", json.dumps(figure))))


def test_every_colour_is_one_of_the_pages_in_light_and_dark(found: str) -> None:
    used = set(re.findall(r"var\((--[\w-]+)\)", found))
    light, dark = re.findall(r":root[^{]*\{(.*?)\}", found, re.DOTALL)
    for declared in (light, dark):
        assert used <= set(re.findall(r"(--[\w-]+):", declared))


def test_it_says_what_was_found_and_how_to_have_it_again(found: str) -> None:
    said = words(found)
    assert "nobody's answer stopped for more than" in said
    assert "3 confirmations on fresh traffic" in said
    assert "tuner optimize --slo-pause=0.5s '--profile=/my profiles/p.yaml' --trials=4 tuner show" in said
    assert "tuner apply bench --to" in said


def test_commands_stand_as_they_are_to_be_typed(tmp_path: Path) -> None:
    bench = sim_bench(tmp_path)
    bench.studies.update(bench.study, engine="http://10.0.0.1:8080")
    said = words(page(evidence_of(bench), "my studies.db"))
    assert "--trials=4 --db 'my studies.db'" in said
    assert "tuner show bench --db 'my studies.db'" in said
    assert "tuner rollback --to http://10.0.0.1:8080" in said


def test_a_study_whose_command_was_not_kept_shows_none(tmp_path: Path) -> None:
    bench = sim_bench(tmp_path)
    bench.studies.update(bench.study, sizing={"capacity": bench.study.sizing["capacity"]})
    said = words(page(evidence_of(bench)))
    assert "tuner optimize" not in said
    assert "tuner show bench" in said


def test_the_freeze_is_seen_to_go_away(found: str) -> None:
    drawn = figures(found)
    gaps = {
        name: [trace for trace in drawn[name]["data"] if trace["name"] == "gap beyond the SLO"]
        for name in ("before", "after")
    }
    assert len(gaps["before"]) == 1
    assert gaps["after"] == []
    assert "tokens of long 1 were read" in " ".join(gaps["before"][0]["hovertext"])
    assert drawn["before"]["layout"]["xaxis"]["range"] == drawn["after"]["layout"]["xaxis"]["range"]
    assert drawn["before"]["layout"]["yaxis"]["ticktext"] == drawn["after"]["layout"]["yaxis"]["ticktext"]


def test_a_study_where_nothing_keeps_the_slo_says_the_smallest_pause(tmp_path: Path) -> None:
    bench = sim_bench(tmp_path, drift=20.0)
    assert bench.study.result["winner"] is None
    said = words(page(evidence_of(bench)))
    assert "No config keeps a pause of 0.5 s; the smallest pause reached is" in said
    assert "tuner apply" not in said


def test_an_interrupted_study_says_how_to_go_on(tmp_path: Path) -> None:
    said = words(page(evidence_of(sim_bench(tmp_path, finished=False))))
    assert "This study has not come to its verdict yet; the best so far is" in said
    assert "--study bench" in said


def test_a_study_killed_in_its_first_run_has_a_report(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    with pytest.raises(Interrupted):
        bench.run(FakeServer(bench.clock, interrupt_at=1))
    content = page(evidence_of(bench))
    read(content)
    assert "no run has come to its end" in words(content)
    assert "No run came to its end" in words(content)


def test_crashed_and_spoiled_runs_are_listed_with_their_reasons(tmp_path: Path) -> None:
    bench = sim_bench(tmp_path)
    crashed = bench.studies.start_trial(bench.study, TrialKind.SEARCH, SchedulerConfig(), 1)
    bench.studies.end_trial(crashed, Measurement(summary=None, crash="out of memory <mlx>"), 0.5)
    spoiled = bench.studies.start_trial(bench.study, TrialKind.SEARCH, SchedulerConfig(), 1)
    bench.studies.end_trial(spoiled, Measurement(summary=None, problems=("dispatch lag",)), 0.5)
    content = page(evidence_of(bench))
    read(content)
    assert "the server broke down: out of memory <mlx>" in words(content)
    assert "spoiled by the load client: dispatch lag" in words(content)
    assert "Not drawn: 2 runs" in words(content)


def test_names_from_outside_do_no_harm(tmp_path: Path) -> None:
    bench = sim_bench(tmp_path)
    nasty = "</script><script>alert(1)</script>"
    bench.studies.update(bench.study, model=nasty, profile=nasty)
    content = page(evidence_of(bench))
    assert nasty not in content
    read(content)
