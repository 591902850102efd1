from __future__ import annotations

import math
from pathlib import Path

import pytest

from engine.core.trace import TraceHeader, TraceRow, format_header, format_row
from tests.patience import until
from tests.tuner.engines import (
    QUICK_PROFILE,
    end_of,
    read_json,
    run_tuner,
    sim_engine,
    sim_engine_process,
    start_tuner,
)
from tuner.commands.replay import ttft_line
from tuner.server.engine_client import EngineClient


@pytest.mark.parametrize(
    ("n", "line"),
    [(200, "3.00 s (p95 of 200)"), (199, "1.00 s (median of 199)"), (19, "3.00 s (worst of 19)")],
)
def test_a_percentile_is_printed_only_when_the_samples_support_it(n, line) -> None:
    assert ttft_line(1.0, 3.0, n) == line


def test_a_first_token_that_never_came_is_no_number() -> None:
    assert ttft_line(1.0, math.inf, 5) == "∞ (worst of 5)"
    assert ttft_line(None, None, 0) == "– (worst of 0)"


def write_trace(path: Path) -> str:
    rows = [
        TraceRow(id="a", t=1.0, prompt_tokens=100, output_tokens=4, session="s", turn=1),
        TraceRow(
            id="b", t=1.5, prompt_tokens=200, output_tokens=4, session="s", turn=2, after="a", think_s=0.1
        ),
        TraceRow(id="c", t=1.6, prompt_tokens=70, output_tokens=9),
    ]
    path.write_text("\n".join((format_header(TraceHeader()), *map(format_row, rows))) + "\n")
    return str(path)


@pytest.mark.parametrize("mode", ["open", "session"])
def test_a_trace_is_replayed_in_either_mode(mode: str, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl")
    with sim_engine(tmp_path / "state") as url:
        status, out, err = run_tuner(tmp_path, "replay", trace, "--to", url, "--mode", mode, "--json")
    assert status == 0, err
    answer = read_json(out)
    assert answer["counts"]["completed"] == 3
    assert (answer["parity"]["exact_prompts"], answer["parity"]["exact_outputs"]) == (3, 3)
    assert answer["classes"] == []


def test_a_server_that_dies_half_way_has_failed_the_replay_and_what_was_seen_is_printed(
    tmp_path: Path,
) -> None:
    rows = [TraceRow(id=str(n), t=0.5 * n, prompt_tokens=50, output_tokens=2) for n in range(9)]
    trace = tmp_path / "t.jsonl"
    trace.write_text("\n".join((format_header(TraceHeader()), *map(format_row, rows))) + "\n")
    with (
        sim_engine_process(tmp_path / "state") as (server, url),
        start_tuner(tmp_path, "replay", str(trace), "--to", url, "--json") as replay,
    ):
        until(lambda: len(EngineClient(url).ended_requests(0)) > 1)  # and so one has been read
        server.kill()
        out, err = end_of(replay)
    assert replay.returncode == 1
    answer = read_json(out)
    assert answer["counts"]["completed"] + answer["counts"]["failed"] == 9
    assert answer["counts"]["completed"] >= 1
    assert answer["outage"] in err.splitlines()[-1]
    assert "the server does not answer any more" in answer["outage"]


def test_a_profile_is_sized_played_and_judged_by_class(tmp_path: Path) -> None:
    profile = tmp_path / "classes.yaml"
    profile.write_text(
        "duration: 1\nclasses: {all: {ttft: 30s, pause: 20s}, hard: {ttft: 1ms}}\ngroups:\n"
        "  g: {class: all, prompt_tokens: 100, max_tokens: 5, arrivals: {process: at, times: [0, 0.2]}}\n"
        "  h: {class: hard, prompt_tokens: 100, max_tokens: 5, arrivals: {process: at, times: [0.1]}}\n"
    )
    with sim_engine(tmp_path / "state") as url:
        status, out, err = run_tuner(tmp_path, "replay", str(profile), "--to", url)
    assert status == 0, err
    assert "all          100% of 2" in out
    assert "hard         0% of 1" in out
    assert "3 of 3 prompts and 3 of 3 answers as planned" in out


def test_a_profile_says_its_own_speed(tmp_path: Path) -> None:
    status, _, err = run_tuner(tmp_path, "replay", str(QUICK_PROFILE), "--speed", "2")
    assert (status, err.count("\n")) == (2, 1)
    assert "--speed is for traces" in err
