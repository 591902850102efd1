from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.errors import RecordingError
from loadtests.recording.trace_file import TraceFile
from tests.full_disk import full_at


def test_a_row_is_on_disk_at_once_and_parts_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for _ in range(2):
        file = TraceFile(path, lambda: "header", max_bytes=20)
        for line in ("row 1", "row 2", "row 3"):
            file.append(line)
            newest = sorted(tmp_path.glob("t*.jsonl"), key=lambda p: p.stat().st_mtime_ns)[-1]
            assert newest.read_text().endswith(f"{line}\n")
        file.close()
    texts = {p.name: p.read_text() for p in tmp_path.iterdir()}
    assert texts == {
        "t.jsonl": "header\nrow 1\nrow 2\n",
        "t.part-2.jsonl": "header\nrow 3\n",
        "t.1.jsonl": "header\nrow 1\nrow 2\n",
        "t.1.part-2.jsonl": "header\nrow 3\n",
    }


def test_a_file_that_cannot_be_made_or_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecordingError, match="cannot record to"):
        TraceFile(tmp_path / "file" / "t.jsonl", lambda: "header")
    with pytest.raises(RecordingError, match="names no file"):
        TraceFile(Path("/"), lambda: "header")
    full = Path("/dev/full")
    if full.exists():
        with pytest.raises(RecordingError, match="/dev/full: No space left"):
            TraceFile(full, lambda: "header").append("row")


def test_a_full_disk_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    file = TraceFile(path, lambda: "header")
    with full_at(1500):
        file.append("x" * 999)
        with pytest.raises(RecordingError, match="the disk is full"):
            file.append("x" * 999)
    file.append("row")
    assert path.read_text() == "header\n" + "x" * 999 + "\nrow\n"
