"""The `tuner replay` command: recorded traffic against a server, and what its users would have seen."""

from __future__ import annotations

import argparse
import contextlib
import json

from rich.console import Console

from engine.core.errors import TraceError
from engine.core.quantiles import supported
from engine.core.report import TrialSummary, summarise
from engine.core.slo import Slo
from loadtests.errors import LoadTestError
from loadtests.replay import ReplayOptions, schedule_from_trace
from loadtests.run import LoadResult, run_load
from loadtests.schedule import Schedule
from loadtests.target import Target
from tuner.engine_client import EngineClient, Keys
from tuner.errors import TunerError
from tuner.terminal import TerminalAnnouncer, in_seconds
from tuner.traffic import read_trace

_CONTEXT_SHARE = 0.9


def run(arguments: argparse.Namespace, keys: Keys) -> int:
    """Replays a trace and prints what came of it. Raises: TunerError, Interrupted."""
    recording = read_trace(arguments.trace)
    with contextlib.closing(EngineClient(arguments.to, keys)) as client:
        _, context = client.model()
    options = ReplayOptions(
        speed=arguments.speed,
        end_s=arguments.window,
        context_tokens=None if context is None else int(context * _CONTEXT_SHARE),
    )
    try:
        schedule = schedule_from_trace(
            recording.rows,
            arguments.seed,
            options,
            name=arguments.trace,
            block_tokens=recording.block_tokens,
            read_notes=recording.notes,
        )
        with TerminalAnnouncer(Console(stderr=True)) as announcer:
            result = _play(schedule, arguments, keys, announcer)
    except (TraceError, LoadTestError) as error:
        raise TunerError(str(error)) from error
    slo = Slo(arguments.slo_pause)
    summary = summarise(result.records, slo, long_prompt_tokens=schedule.long_prompt_tokens)
    _print(summary, result, schedule, arguments.json)
    return 0


def _play(
    schedule: Schedule, arguments: argparse.Namespace, keys: Keys, announcer: TerminalAnnouncer
) -> LoadResult:
    for note in schedule.notes:
        announcer.warn(note)
    announcer.say(f"{len(schedule.requests)} requests in {schedule.duration_s:.0f} s")
    announcer.doing("replaying")
    target = Target(arguments.to, api_key=keys.api)
    result = run_load(schedule, target, slo_pause_s=arguments.slo_pause, on_progress=announcer.running)
    for reason in result.validity.reasons:
        announcer.warn(f"the load client was not exact: {reason}")
    return result


def _print(summary: TrialSummary, result: LoadResult, schedule: Schedule, as_json: bool) -> None:
    if as_json:
        answer = summary.to_mapping() | {
            "validity": result.validity.to_mapping(),
            "notes": list(schedule.notes),
        }
        print(json.dumps(answer, allow_nan=False))
        return
    outcomes = ", ".join(f"{count} {name}" for name, count in summary.counts.items() if count)
    print(f"requests       {summary.num_scheduled}: {outcomes}")
    print(f"worst pause    {in_seconds(summary.worst_pause_s)} of {summary.num_streams} streams")
    long = ttft_line(summary.long_ttft_p50_s, summary.long_ttft_p95_s, summary.long_ttft_n)
    short = ttft_line(summary.short_ttft_p50_s, summary.short_ttft_p95_s, summary.short_ttft_n)
    print(f"long TTFT      {long}")
    print(f"short TTFT     {short}")
    low, high = summary.attainment_low, summary.attainment_high
    print(f"attainment     {summary.attainment:.0%} (95 % interval {low:.0%} to {high:.0%})")


def ttft_line(p50_s: float | None, p95_s: float | None, n: int) -> str:
    """The highest percentile that `n` samples support; of very few the worst, which their p95 is."""
    if supported(0.95, n):
        return f"{in_seconds(p95_s)} (p95 of {n})"
    if supported(0.5, n):
        return f"{in_seconds(p50_s)} (median of {n})"
    return f"{in_seconds(p95_s)} (worst of {n})"
