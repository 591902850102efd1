from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from tests.tuner.html_report.sim_study import sim_bench
from tuner.commands.show import run


def show(directory: Path, capsys: pytest.CaptureFixture[str], as_json: bool = False) -> str:
    run(Namespace(db=str(directory / "evenflow.db"), study="bench", json=as_json))
    return capsys.readouterr().out


def test_a_study_is_shown_with_its_verdict_its_trials_and_its_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = sim_bench(tmp_path)
    shown = show(tmp_path, capsys)
    assert "nobody's answer stopped for more than" in shown
    for trial in bench.studies.trials(bench.study):
        assert f"\n{trial.number}  " in shown
    plot = shown[shown.index("long TTFT\n") :]
    assert "★" in plot.split("· simulated")[0]
    assert "■" in plot.split("· simulated")[0]


def test_an_interrupted_study_shows_what_it_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim_bench(tmp_path, finished=False)
    assert "the best so far is" in show(tmp_path, capsys)


def test_programs_get_the_same_object_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim_bench(tmp_path)
    answer = json.loads(show(tmp_path, capsys, as_json=True))
    assert answer["result"]["winner"]["replicates"] == 3
    assert {"number", "kind", "status", "config", "worst_pause_s", "summary"} <= set(answer["trials"][0])
    assert answer["applies"] == []
