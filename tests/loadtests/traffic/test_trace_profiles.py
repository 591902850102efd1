from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.core.errors import TraceError
from engine.core.slo import SloClass
from engine.core.trace import TraceHeader, TraceRow, format_header, format_row
from loadtests.errors import ProfileError
from loadtests.traffic.offered_load import build_schedule
from loadtests.traffic.profile import Profile
from loadtests.traffic.profile_fields import parse_profile
from loadtests.traffic.profiles import load_profile, profile_names
from loadtests.traffic.recorded import Recorded, read_recorded
from loadtests.traffic.replay import ReplayOptions
from loadtests.traffic.schedule import Schedule, Sizing, uncached_tokens
from loadtests.traffic.trace_profiles import build_trace_schedule, find_trace, schedule_of
from tests.loadtests.traces_here import SAMPLES

SMALL = Sizing(prefill_tokens_per_s=270.0, decode_step_s=0.1, context_tokens=8192, slo_pause_s=0.5)
LARGE = Sizing(prefill_tokens_per_s=9000.0, decode_step_s=0.015, context_tokens=131_072, slo_pause_s=0.5)
PRESETS = [name for name in profile_names() if load_profile(name).trace]


def profile(**trace: Any) -> Profile:
    values = {"duration": 30, "classes": {"all": {"ttft": "3s"}}}
    return parse_profile(values | {"trace": {"file": "t.jsonl", "class": "all"} | trace}, "t.yaml")


def recorded(num_rows: int = 200, prompt: int = 400, output: int = 20) -> Recorded:
    rows = [
        TraceRow(
            id=f"r{n}", t=100.3 + n, prompt_tokens=prompt, output_tokens=output, session=f"s{n % 20}",
            after=f"r{n - 20}" if n >= 20 else None, think_s=4.0 if n >= 20 else None,
            prefix=("system", f"{n}"),
        )
        for n in range(num_rows)
    ]  # fmt: skip
    return Recorded(rows, 64)


def load_of(schedule: Schedule, sizing: Sizing) -> float:
    requests = schedule.requests
    costs = (
        sizing.seconds(u, r.max_tokens) for r, u in zip(requests, uncached_tokens(requests), strict=True)
    )
    return sum(costs) / schedule.duration_s


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_the_trace_makes_the_load_that_the_profile_wants(load: float) -> None:
    schedule = build_trace_schedule(profile(load=load), recorded(), 1, SMALL)
    assert load_of(schedule, SMALL) == pytest.approx(load, rel=0.2)
    assert schedule.duration_s == 30.0
    assert schedule.requests[0].at_s == 0.0
    assert schedule.requests[-1].at_s == pytest.approx(30.0)


def test_a_faster_server_gets_more_of_the_trace_in_the_same_time() -> None:
    small, large = (build_trace_schedule(profile(), recorded(), 1, sizing) for sizing in (SMALL, LARGE))
    assert len(large.requests) > 2 * len(small.requests)


def test_long_prompts_are_shortened_to_what_the_server_reads_in_time() -> None:
    small, large = (
        build_trace_schedule(profile(), recorded(prompt=20_000, output=40), 1, sizing)
        for sizing in (SMALL, LARGE)
    )
    assert max(r.prompt_tokens for r in small.requests) <= 6 * SMALL.slo_pause_s * SMALL.prefill_tokens_per_s
    assert max(r.prompt_tokens for r in large.requests) == 20_000
    assert "lengths divided by" in small.notes[0]
    assert "divided" not in large.notes[0]
    as_told = build_trace_schedule(profile(shrink=4), recorded(prompt=20_000), 1, LARGE)
    assert {r.prompt_tokens for r in as_told.requests} == {5000}


def test_turns_wait_as_long_in_proportion() -> None:
    opened = build_trace_schedule(profile(load=0.9), recorded(), 1, LARGE)
    sessions = build_trace_schedule(profile(load=0.9, mode="session"), recorded(), 1, LARGE)
    speed = (len(sessions.requests) - 1) / 30.0  # recorded one second apart
    assert {r.think_s for r in opened.requests} == {None}
    assert [r.think_s for r in sessions.requests[20:]] == pytest.approx([4.0 / speed] * 180)


def test_every_request_is_in_the_profiles_class() -> None:
    schedule = build_trace_schedule(profile(), recorded(), 1, SMALL)
    assert schedule.classes == (SloClass("all", 3.0),)
    assert {request.slo_class for request in schedule.requests} == {"all"}


def test_the_start_may_be_skipped() -> None:
    schedule = build_trace_schedule(profile(start_s=50), recorded(), 1, SMALL)
    assert schedule.requests[0].id == "r50"
    with pytest.raises(TraceError, match="no request is left"):
        build_trace_schedule(profile(start_s=1000), recorded(), 1, SMALL)


def test_a_trace_is_found_as_given_or_in_the_folder_of_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(format_header(TraceHeader(block=64)) + "\n" + format_row(recorded().rows[0]) + "\n")
    monkeypatch.setenv("EVENFLOW_TRACES", str(tmp_path))
    assert find_trace("t.jsonl") == find_trace(str(path)) == path
    assert read_recorded(path).block_tokens == 64
    with pytest.raises(ProfileError, match="set EVENFLOW_TRACES") as caught:
        find_trace("other.jsonl")
    assert "\n" not in str(caught.value)


def test_a_recording_is_replayed_in_order_and_that_is_nothing_to_note(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [format_row(row) for row in reversed(recorded(5).rows)]
    path.write_text("\n".join([format_header(TraceHeader(block=64)), *lines]) + "\n")
    schedule = read_recorded(path).schedule(1, ReplayOptions(), "t")
    assert [request.id for request in schedule.requests] == ["r0", "r1", "r2", "r3", "r4"]
    assert schedule.notes == ()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("sizing", [SMALL, LARGE], ids=["small", "large"])
def test_every_preset_fits_every_host(name: str, sizing: Sizing) -> None:
    preset = load_profile(name)
    assert preset.trace
    if not (SAMPLES / preset.trace.file).is_file():
        pytest.skip(f"{preset.trace.file} is not here")
    trace = read_recorded(SAMPLES / preset.trace.file)
    schedule = build_trace_schedule(preset, trace, 1, sizing)
    assert schedule.duration_s == 60.0
    assert len(schedule.requests) >= 10
    assert load_of(schedule, sizing) == pytest.approx(preset.trace.load, rel=0.3)
    assert all(r.prompt_tokens + r.max_tokens <= sizing.context_tokens for r in schedule.requests)


def test_any_profile_becomes_a_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = map(format_row, recorded().rows)
    (tmp_path / "t.jsonl").write_text("\n".join((format_header(TraceHeader(block=64)), *rows)) + "\n")
    monkeypatch.setenv("EVENFLOW_TRACES", str(tmp_path))
    assert schedule_of(profile(), 1, SMALL) == build_trace_schedule(profile(), recorded(), 1, SMALL)
    assert schedule_of(load_profile("chat"), 1, SMALL) == build_schedule(load_profile("chat"), 1, SMALL)
    (tmp_path / "t.jsonl").write_text("nonsense\n")
    with pytest.raises(ProfileError, match=r"profile t: .*no known trace format"):
        schedule_of(profile(), 1, SMALL)
