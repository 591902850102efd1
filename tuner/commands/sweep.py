"""The `tuner sweep` command."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json

from rich.console import Console

from engine.core.config import SchedulerConfig
from tuner.errors import UsageError
from tuner.evaluation.sizing import Capacity, Probe
from tuner.reporting.terminal import TerminalAnnouncer, in_seconds
from tuner.server.config_setter import restoring
from tuner.server.engine_client import Keys
from tuner.serving import EngineChoice, serving
from tuner.sweep import DEFAULT_CHUNKS, Sweep, SweepPlan, SweepRow

# The prompt is as long as this many seconds of unchunked reading, as in the table everybody knows.
_READING_S = 3.0
_PROBE_PAUSE_S = 0.5
_MAX_CONTEXT_SHARE = 0.75
_BAR = 30


def run(arguments: argparse.Namespace, keys: Keys) -> int:
    """Measures and prints the table. Raises: TunerError, UsageError, Interrupted."""
    chunks = _parse_chunks(arguments.chunks)
    choice = EngineChoice(arguments.engine, arguments.model, arguments.backend, keys)
    client = choice.connect()
    with TerminalAnnouncer(Console(stderr=True)) as announcer, contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(choice, client, announcer))
        stack.enter_context(restoring(server.setter, announcer.warn))
        _check_room(server.setter.original.config, arguments.streams)
        announcer.doing("measuring what this server can do")
        capacity = Probe(server, arguments.seed).measure(_PROBE_PAUSE_S)
        plan = SweepPlan(
            chunks=chunks or DEFAULT_CHUNKS,
            go_on=chunks is None,
            prompt_tokens=_prompt_tokens(arguments.prompt_tokens, capacity),
            streams=arguments.streams,
            repeats=arguments.repeats,
            seed=arguments.seed,
        )
        model, _ = server.client.model()
        announcer.say(
            f"Evenflow · {model} · {plan.streams} streams + one prompt of {plan.prompt_tokens} tokens"
        )
        rows = Sweep(server, server.setter.original.config, capacity, plan, announcer).run()
    _print(model, plan, rows, arguments.json)
    return 0


def _parse_chunks(text: str | None) -> tuple[int | None, ...] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    bad = [word for word in words if word != "whole" and not (word.isdecimal() and int(word) > 0)]
    if bad or not words:
        wrong = repr(bad[0] if bad else text)
        raise UsageError(f"--chunks: {wrong} is not a chunk size; write it like whole,2048,1024,512")
    return tuple(None if word == "whole" else int(word) for word in words)


def _check_room(config: SchedulerConfig, streams: int) -> None:
    """Streams that have to queue would not pause beside the prompt. Raises: UsageError."""
    room = config.max_running_requests
    if streams >= room:
        raise UsageError(f"--streams {streams} and a prompt are too many: this server runs {room} at once")


def _prompt_tokens(wanted: int | None, capacity: Capacity) -> int:
    limit = int(capacity.context_tokens * _MAX_CONTEXT_SHARE)
    if wanted is None:
        return min(limit, max(64, capacity.costs.max_chunk_tokens(_READING_S, 0)))
    if wanted > limit:
        raise UsageError(
            f"--prompt-tokens {wanted} is too long: this model's context leaves room for {limit}"
        )
    return wanted


def _print(model: str, plan: SweepPlan, rows: list[SweepRow], as_json: bool) -> None:
    if as_json:
        answer = {
            "model": model,
            "prompt_tokens": plan.prompt_tokens,
            "streams": plan.streams,
            "repeats": plan.repeats,
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        print(json.dumps(answer, allow_nan=False))
    else:
        print("\n".join(table(rows)))


def table(rows: list[SweepRow]) -> list[str]:
    """The table, with both columns drawn to one scale."""
    longest = max((s for row in rows for s in (row.long_ttft_s, row.worst_pause_s) if s), default=1.0)
    names = f"{'chunk':>10}{'long TTFT':>12}{'worst pause':>13}{'overhead':>10}{'efficiency':>12}"
    lines = [f"{names}   █ TTFT, ░ worst pause"]
    return lines + [_line(row, longest) for row in rows]


def _line(row: SweepRow, longest: float) -> str:
    name = "unchunked" if row.chunk_tokens is None else f"{row.chunk_tokens:,}"
    overhead = "–" if row.prefill_overhead is None else f"{row.prefill_overhead:+.0%}"
    ttft, pause = in_seconds(row.long_ttft_s), in_seconds(row.worst_pause_s)
    drawn = _bar(row.long_ttft_s, row.worst_pause_s, longest)
    efficiency = "–" if row.chunking_efficiency is None else f"{row.chunking_efficiency:.2f}"
    return f"{name:>10}{ttft:>12}{pause:>13}{overhead:>10}{efficiency:>12}   {drawn}"


def _bar(ttft_s: float | None, pause_s: float | None, longest: float) -> str:
    whole = round(_BAR * (ttft_s or 0.0) / longest)
    paused = min(whole, max(1, round(_BAR * (pause_s or 0.0) / longest)))
    return "░" * paused + "█" * (whole - paused)
