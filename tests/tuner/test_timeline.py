from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.core.cost_model import Work
from engine.core.events import StepRecord
from engine.core.plan import PrefillChunk
from engine.core.records import ContentEvent, Outcome, RequestRecord
from tests.tuner.fakes import FakeServer, StudyBench
from tuner import timeline
from tuner.timeline import RunTimeline, timeline_of

ENGINE_STARTED_S = 1000.0


def record(name: str, *times_s: float, engine_id: str = "") -> RequestRecord:
    return RequestRecord(
        id=name, scheduled_at_s=0.0, planned_prompt_tokens=100, max_tokens=10, outcome=Outcome.COMPLETED,
        ended_at_s=times_s[-1], events=tuple(ContentEvent(t, 1, t + ENGINE_STARTED_S) for t in times_s),
        timings={"id": engine_id} if engine_id else None,
    )  # fmt: skip


def step(ended_at_s: float, duration_s: float, *chunks: PrefillChunk) -> StepRecord:
    return StepRecord(
        step=1, generation=1, ended_at_s=ended_at_s + ENGINE_STARTED_S, duration_s=duration_s, work=Work(),
        prefill=chunks, num_running=1, num_waiting=0,
    )  # fmt: skip


def test_chunks_are_told_by_the_clients_clock_and_names() -> None:
    chunk = PrefillChunk("chatcmpl-7", 64, 32, False)
    found = timeline_of(
        [record("long", 1.0, 1.1, engine_id="chatcmpl-7")], [step(0.9, 0.4, chunk), step(1.0, 0.1)]
    )
    (read,) = found.chunks
    assert (read.request_id, read.start, read.num_tokens) == ("long", 64, 32)
    assert (read.from_s, read.to_s) == pytest.approx((0.5, 0.9))


def test_a_prompt_of_somebody_else_has_no_name() -> None:
    found = timeline_of([record("r", 1.0)], [step(0.9, 0.4, PrefillChunk("chatcmpl-9", 0, 32, True))])
    assert [chunk.request_id for chunk in found.chunks] == [None]


def test_a_timeline_comes_back_from_json_to_the_millisecond() -> None:
    times = tuple(0.1 * k + 0.0004 for k in range(1, 400))
    found = timeline_of(
        [record("r", *times, engine_id="x")], [step(0.9, 0.4, PrefillChunk("x", 0, 32, True))]
    )
    back = RunTimeline.from_mapping(json.loads(json.dumps(found.to_mapping())))
    assert back.events["r"] == pytest.approx(times, abs=0.0011)
    assert back.chunks[0].request_id == "r"


def test_what_is_kept_of_a_run_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_EVENTS", 3)
    found = timeline_of([record("first", 1.0, 1.1), record("second", 1.0, 1.1)], [])
    assert {name: len(times) for name, times in found.events.items()} == {"first": 2, "second": 0}


def test_every_run_of_a_study_has_one(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    bench.run(FakeServer(bench.clock))
    kept = [bench.studies.timeline(trial) for trial in bench.studies.trials(bench.study)]
    assert all(found is not None and len(found.events["stream"]) == 2 for found in kept)
