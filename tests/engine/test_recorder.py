from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from engine.core.cost_model import Work
from engine.core.events import StepRecord
from engine.core.plan import PrefillChunk
from engine.core.request import Request
from engine.core.step_json import read_steps
from engine.core.timeline import Timeline
from engine.core.trace import read_trace
from engine.recorder import LineWriter, RecordError, StepRecorder, TraceRecorder, prefix_hashes
from engine.server.service import Caller
from engine.server.stats import EndedRequest
from tests.engine.fakes import DEADLINE_S

RECORD = StepRecord(3, 1, 2.5, 0.5, Work(1, 8, 32.0), (PrefillChunk("a", 0, 8, True),), 1, 0)


def request(name: str, prompt: list[int], at_s: float = 0.0) -> Request:
    return Request(id=name, prompt=prompt, max_tokens=9, arrived_at_s=at_s)


def ended(wanted: Request, outcome: str = "completed", ended_at_s: float = 5.0) -> EndedRequest:
    timeline = Timeline(
        wanted.arrived_at_s, 2, wanted.arrived_at_s + 0.25, wanted.arrived_at_s + 1, ended_at_s=ended_at_s,
        num_output_tokens=4, worst_pause_s=0.125,
    )  # fmt: skip
    return EndedRequest(wanted.id, outcome, wanted.num_prompt_tokens, 2, timeline)


def test_a_trace_row_holds_lengths_hashes_and_what_became_of_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = TraceRecorder(path, clock=lambda: 10.0, tokenizer=lambda: "abc")
    wanted = request("r1", list(range(100)), at_s=12.0)
    recorder.on_end(wanted, Caller("ada", None, True), ended(wanted, ended_at_s=15.0))
    recorder.close()
    header, rows = read_trace(path.read_text().splitlines())
    (row,) = rows
    assert (header.tokenizer, header.block, header.redaction) == ("abc", 64, "lengths+hashes")
    assert (row.id, row.t, row.prompt_tokens, row.output_tokens, row.max_tokens) == ("r1", 2.0, 100, 4, 9)
    assert len(row.prefix) == 2
    assert row.orig
    assert (row.orig.status, row.orig.queue_s, row.orig.ttft_s) == ("completed", 0.25, 1.0)
    assert (row.orig.worst_pause_s, row.orig.e2e_s, row.orig.config) == (0.125, 3.0, 2)
    assert "ada" not in path.read_text()


def test_a_client_that_left_and_one_that_was_refused_are_rows_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = TraceRecorder(path, clock=lambda: 0.0)
    left, refused = request("r1", [1], at_s=1.0), request("r2", [1], at_s=2.0)
    recorder.on_end(left, Caller(), ended(left, "aborted", 4.0))
    recorder.on_refused(refused, Caller(), 429)
    recorder.on_refused(refused, Caller(), 503)
    recorder.close()
    first, second = read_trace(path.read_text().splitlines())[1]
    assert first.cancel_s == 3.0
    assert second.output_tokens == 0
    assert second.orig
    assert second.orig.status == 429


def test_turns_of_a_session_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = TraceRecorder(path, clock=lambda: 0.0)
    for name, at_s, ended_at_s in (("r1", 1.0, 3.0), ("r2", 7.0, 8.0), ("r3", 7.5, 9.0)):
        turn = request(name, [1], at_s)
        recorder.on_end(turn, Caller(session="s"), ended(turn, ended_at_s=ended_at_s))
    recorder.close()
    first, second, third = read_trace(path.read_text().splitlines())[1]
    assert (first.turn, first.after) == (1, None)
    assert (second.turn, second.after, second.think_s) == (2, "r1", 4.0)
    assert (third.turn, third.after) == (3, None)
    assert first.session == second.session != "s"


def test_equal_prefixes_hash_equal_under_one_salt_only() -> None:
    one, other = list(range(200)), [*range(128), 9, 9, 9]
    assert prefix_hashes(one, b"salt")[:2] == prefix_hashes(other, b"salt")[:2]
    assert prefix_hashes(one, b"salt")[2] != prefix_hashes(other, b"salt")[2]
    assert not set(prefix_hashes(one, b"salt")) & set(prefix_hashes(one, b"other"))


def test_step_records_read_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    recorder = StepRecorder(path)
    recorder.on_step(RECORD, 1)
    recorder.close()
    assert list(read_steps(path.read_text().splitlines(keepends=True))) == [RECORD]


def test_a_file_that_is_there_already_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    for text in ("first", "second", "third"):
        writer = LineWriter(path, str)
        writer.put(text)
        writer.close()
    texts = [p.read_text() for p in (tmp_path / "steps.1.jsonl", tmp_path / "steps.2.jsonl", path)]
    assert texts == ["first\n", "second\n", "third\n"]


def test_a_slow_disk_loses_lines_but_holds_nobody_up(tmp_path: Path) -> None:
    may_write, writing = threading.Event(), threading.Event()

    def slow(value: object) -> str:
        writing.set()
        assert may_write.wait(DEADLINE_S)
        return str(value)

    writer = LineWriter(tmp_path / "lines", slow, max_queued=2)
    writer.put(0)
    assert writing.wait(DEADLINE_S)
    for value in range(1, 6):
        writer.put(value)
    may_write.set()
    writer.close()
    assert writer.num_dropped == 3
    assert (tmp_path / "lines").read_text() == "0\n1\n2\n"


def test_lines_are_on_disk_before_the_recording_ends(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    writer = LineWriter(path, str)
    writer.put("a line")
    pause = threading.Event()
    while path.read_text() != "a line\n":
        pause.wait(0.01)
    writer.close()


def test_a_recording_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecordError, match="cannot record"):
        LineWriter(tmp_path / "file" / "trace.jsonl", str)


def test_a_line_cut_short_by_the_end_is_skipped() -> None:
    line = json.dumps({"seq": 1, "step": 1})
    assert list(read_steps([line[:5]])) == []
