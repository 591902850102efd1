from __future__ import annotations

import json
import math
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.core.cost_model import Work
from engine.core.errors import TraceError
from engine.core.events import StepRecord
from engine.core.plan import PrefillChunk
from engine.core.request import Request
from engine.core.step_json import read_steps, step_to_mapping
from engine.core.timeline import Timeline
from engine.core.trace import TraceHeader, TraceRow, parse_header, parse_rows
from engine.recording.lines import LineWriter, RecordError
from engine.recording.steps import StepRecorder
from engine.recording.traffic import TrafficRecorder, gently
from engine.server.service import Caller
from engine.server.stats import EndedRequest
from loadtests.traces.files import open_trace
from tests.full_disk import full_at
from tests.patience import DEADLINE_S, until

RECORD = StepRecord(3, 1, 2.5, 0.5, Work(1, 8, 32.0), (PrefillChunk("a", 0, 8, True),), 1, 0)


def request(name: str, prompt: list[int], at_s: float = 0.0, boundaries: tuple[int, ...] = ()) -> Request:
    return Request(id=name, prompt=prompt, max_tokens=9, arrived_at_s=at_s, boundaries=boundaries)


def ended(wanted: Request, outcome: str = "completed", ended_at_s: float = 5.0) -> EndedRequest:
    timeline = Timeline(
        wanted.arrived_at_s, 2, wanted.arrived_at_s + 0.25, wanted.arrived_at_s + 1, ended_at_s=ended_at_s,
        num_output_tokens=4, worst_pause_s=0.125,
    )  # fmt: skip
    return EndedRequest(wanted.id, outcome, wanted.num_prompt_tokens, 2, timeline)


def read_trace(path: Path) -> tuple[TraceHeader, list[TraceRow]]:
    first, *lines = path.read_text().splitlines()
    header = parse_header(first, "trace")
    return header, list(parse_rows(enumerate(lines, start=2), header))


def test_a_trace_row_holds_lengths_hashes_and_what_became_of_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = TrafficRecorder(path, clock=lambda: 10.0, tokenizer=lambda: "abc")
    wanted = request("r1", list(range(100)), at_s=12.0)
    recorder.on_end(wanted, Caller("ada", None, True), ended(wanted, ended_at_s=15.0))
    recorder.close()
    header, rows = read_trace(path)
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
    recorder = TrafficRecorder(path, clock=lambda: 0.0)
    left, refused = request("r1", [1], at_s=1.0), request("r2", [1], at_s=2.0)
    recorder.on_end(left, Caller(), ended(left, "aborted", 4.0))
    recorder.on_refused(refused, Caller(), 429, 3)
    recorder.on_refused(refused, Caller(), 503, 3)
    recorder.close()
    first, second = read_trace(path)[1]
    assert first.cancel_s == 3.0
    assert second.output_tokens == 0
    assert second.orig
    assert (second.orig.status, second.orig.config) == (429, 3)


def test_turns_of_a_session_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = TrafficRecorder(path, clock=lambda: 0.0)
    for name, user, at_s, ended_at_s in (
        ("r1", "ada", 1.0, 3.0),
        ("r2", "ada", 7.0, 8.0),
        ("r3", "bob", 9.0, 9.5),
    ):
        turn = request(name, [1], at_s)
        recorder.on_end(turn, Caller(user, "s"), ended(turn, ended_at_s=ended_at_s))
    recorder.on_refused(request("r4", [1], 10.0), Caller("ada", "s"), 429, 3)
    recorder.close()
    first, second, third, refused = read_trace(path)[1]
    assert (first.turn, first.after) == (1, None)
    assert (second.turn, second.after, second.think_s) == (2, "r1", 4.0)
    assert (third.turn, third.after) == (1, None)
    assert (refused.turn, refused.after) == (None, None)
    assert first.session == second.session == refused.session != third.session
    assert first.session != "s"


@pytest.mark.parametrize(
    ("length", "boundaries", "is_followed"),
    [
        (40, (20, 37), True),  # messages, then a cue that later turns lack
        (40, (), False),  # a prompt of no messages, and as short as many
        (100, (100,), False),  # its last tokens are no cue, but part of it
        (100, (20,), False),  # of a template that lets no message end: not the system prompt alone
        (100, (97,), True),
    ],
)
def test_a_conversation_is_told_from_its_prompts(
    tmp_path: Path, length: int, boundaries: tuple[int, ...], is_followed: bool
) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = TrafficRecorder(path, clock=lambda: 0.0)
    said = list(range(length - 3))
    first = request("r1", [*said, 7, 7, 7], 1.0, boundaries)
    later = request("r2", [*said, 8, 8, 8, 8, *range(90)], 7.0)
    for turn in (first, later):
        recorder.on_end(turn, Caller(), ended(turn, ended_at_s=turn.arrived_at_s + 2))
    recorder.close()
    one, two = read_trace(path)[1]
    assert (one.session, one.turn, one.after) == ("r1", 1, None)
    assert (two.session, two.after, two.think_s) == (("r1", "r1", 4.0) if is_followed else ("r2", None, None))


def test_a_long_recording_goes_on_in_parts_that_can_be_put_together(tmp_path: Path) -> None:
    path = tmp_path / "monday.jsonl"
    for _ in range(2):  # the second recording sets the first aside, with all its parts
        recorder = TrafficRecorder(path, clock=lambda: 0.0, max_bytes=1200)
        for number in range(20):
            turn = request(f"r{number}", [1] * 100, float(number))
            recorder.on_end(turn, Caller(), ended(turn, ended_at_s=20.0 - number))
        recorder.close()
    names = {part.name for part in tmp_path.iterdir()}
    assert {"monday.jsonl", "monday.part-2.jsonl", "monday.1.jsonl", "monday.1.part-2.jsonl"} <= names
    assert all(part.stat().st_size <= 1200 for part in tmp_path.iterdir())
    headers = {read_trace(part)[0] for part in tmp_path.glob("monday.part-*.jsonl")}
    assert len(headers) == 1
    whole = tmp_path / "whole.jsonl"
    subprocess.run("cat monday.jsonl monday.part-*.jsonl > whole.jsonl", shell=True, check=True, cwd=tmp_path)
    trace = open_trace(whole)
    assert {trace.header} == headers
    assert sorted(int(row.id[1:]) for row in trace.rows) == list(range(20))


def test_work_is_done_with_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, rests = [0.0], []

    def work() -> Iterator[int]:
        for number in range(100):
            now_s[0] += 10e-6
            yield number

    monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
    monkeypatch.setattr("time.sleep", rests.append)
    assert gently(work()) == list(range(100))
    assert len(rests) >= 100 * 10e-6 / 60e-6


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
    assert until(path.read_text) == "a line\n"
    writer.close()


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = LineWriter(path, str)
    with full_at(5500):
        for _ in range(10):
            writer.put("x" * 999)
        writer.close()
    assert path.read_text() == ("x" * 999 + "\n") * 5


def test_a_recording_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecordError, match="cannot record"):
        LineWriter(tmp_path / "file" / "trace.jsonl", str)
    with pytest.raises(RecordError, match=r"cannot record to '\.': it names no file"):
        LineWriter(Path(""), str)


def test_a_line_cut_short_by_the_end_is_skipped() -> None:
    line = json.dumps({"seq": 1, "step": 1})
    assert list(read_steps([line[:5]])) == []


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("", "duration_s", "0.1"),
        ("", "duration_s", None),
        ("", "ended_at_s", math.nan),
        ("", "num_running", -1),
        ("", "work", 5),
        ("work", "prefill_tokens", "many"),
        ("work", "decode_kv_tokens", None),
    ],
)
def test_a_step_whose_numbers_are_none_is_named(part: str, name: str, value: object) -> None:
    step = step_to_mapping(RECORD, 1)
    (step[part] if part else step)[name] = value
    with pytest.raises(TraceError, match="line 2 is not a step record") as caught:
        list(read_steps([json.dumps(step_to_mapping(RECORD, 1)) + "\n", json.dumps(step) + "\n"]))
    assert name in str(caught.value) or name == "work"
