from __future__ import annotations

import errno
from argparse import Namespace
from pathlib import Path

import pytest

from tests.tuner.html_report.sim_study import sim_bench
from tuner.commands.report import run
from tuner.errors import TunerError


def report(directory: Path, html: Path | None, study: str | None = None) -> int:
    return run(Namespace(db=str(directory / "evenflow.db"), study=study, html=html))


def test_the_study_worked_on_last_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim_bench(tmp_path)
    file = tmp_path / "report.html"
    assert report(tmp_path, file) == 0
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    said = capsys.readouterr()
    assert said.out == ""
    assert str(file) in said.err


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    sim_bench(tmp_path)
    with pytest.raises(TunerError, match="No such file or directory; choose another --html"):
        report(tmp_path, tmp_path / "nowhere" / "report.html")


def test_an_earlier_report_is_lost_only_to_a_whole_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim_bench(tmp_path)
    file = tmp_path / "report.html"
    assert report(tmp_path, file) == 0
    earlier = file.read_text(encoding="utf-8")
    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(TunerError, match="No space left on device; choose another --html"):
        report(tmp_path, file)
    assert file.read_text(encoding="utf-8") == earlier
    assert {path.name for path in tmp_path.glob("*.new")} == set()
    assert {path.name for path in tmp_path.glob(".*")} == set()


def write_half(path: Path, text: str, encoding: str) -> int:
    path.write_bytes(text.encode(encoding)[: len(text) // 2])
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_unknown_study_is_one_line(tmp_path: Path) -> None:
    sim_bench(tmp_path)
    with pytest.raises(TunerError, match="known studies: bench"):
        report(tmp_path, tmp_path / "report.html", "other")
