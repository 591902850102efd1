"""The `tuner replay` command: recorded or described traffic against a server, and what its users saw."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from rich.console import Console

from engine.core.attainment import ClassAttainment, attainment_by_class
from engine.core.errors import TraceError
from engine.core.quantiles import supported
from engine.core.report import TrialSummary, summarise
from engine.core.slo import Slo
from loadtests.client.target import Target, model_card
from loadtests.errors import LoadTestError, TargetError
from loadtests.outage import outage
from loadtests.play.quick_size import size_up
from loadtests.run import LoadResult, run_load
from loadtests.synthesis.prompts import PromptBook
from loadtests.traffic.replay import ReplayOptions
from loadtests.traffic.schedule import Schedule
from tuner.errors import TunerError, UsageError
from tuner.reporting.terminal import TerminalAnnouncer, in_seconds
from tuner.server.engine_client import Keys
from tuner.server.served_model import context_tokens_of
from tuner.traffic.offered import is_profile, profile_traffic, recorded_trace

_CONTEXT_SHARE = 0.9


Offer = Callable[[Target, PromptBook], Schedule]


def run(arguments: argparse.Namespace, keys: Keys) -> int:
    """Sends the traffic and prints what came of it.

    Raises:
        TunerError: the server cannot be used; or it was gone during the run, after what was seen is printed.
        UsageError: the options do not fit the traffic.
        Interrupted: by Ctrl-C.
    """
    offer = _of_profile(arguments) if is_profile(arguments.trace) else _of_trace(arguments)
    try:
        with TerminalAnnouncer(Console(stderr=True)) as announcer:
            target = Target(arguments.to, api_key=keys.api)
            book = PromptBook(target)
            announcer.doing("sizing up the traffic")
            schedule = offer(target, book)
            result = _play(schedule, target, book, arguments.slo_pause, announcer)
        gone = outage(result.records, answers_now=_answers(target))
    except (TraceError, LoadTestError) as error:
        raise TunerError(str(error)) from error
    summary = summarise(
        result.records, Slo(arguments.slo_pause), long_prompt_tokens=schedule.long_prompt_tokens
    )
    classes = attainment_by_class(result.records, schedule.classes, arguments.slo_pause)
    if arguments.json:
        print(json.dumps(_to_json(summary, classes, result, schedule) | {"outage": gone}, allow_nan=False))
    else:
        print("\n".join((*_lines(summary, result), *map(_class_line, classes))))
    if gone is not None:
        sys.stdout.flush()
        raise TunerError(gone)
    return 0


def _answers(target: Target) -> bool:
    try:
        model_card(target)
    except TargetError:
        return False
    return True


def _of_trace(arguments: argparse.Namespace) -> Offer:
    recorded = recorded_trace(arguments.trace)

    def offer(target: Target, book: PromptBook) -> Schedule:
        context = context_tokens_of(model_card(target))
        options = ReplayOptions(
            mode=arguments.mode or "open",
            speed=arguments.speed or 1.0,
            start_s=recorded.first_s,
            end_s=arguments.window and recorded.first_s + arguments.window,
            context_tokens=None if context is None else int(context * _CONTEXT_SHARE),
        )
        return recorded.schedule(arguments.seed, options, arguments.trace)

    return offer


def _of_profile(arguments: argparse.Namespace) -> Offer:
    for option in ("mode", "speed", "window"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option} is for traces; the profile {arguments.trace} says it itself")
    traffic = profile_traffic(arguments.trace, arguments.slo_pause)

    def offer(target: Target, book: PromptBook) -> Schedule:
        sizing = size_up(target, book, arguments.slo_pause)
        return traffic.build(arguments.seed, sizing, arguments.seed)

    return offer


def _play(
    schedule: Schedule, target: Target, book: PromptBook, slo_pause_s: float, announcer: TerminalAnnouncer
) -> LoadResult:
    for note in schedule.notes:
        announcer.warn(note)
    announcer.say(f"{len(schedule.requests)} requests in {schedule.duration_s:.0f} s")
    announcer.doing("replaying")
    result = run_load(schedule, target, book=book, slo_pause_s=slo_pause_s, on_progress=announcer.running)
    for note in result.notes:
        announcer.warn(note)
    for reason in result.validity.reasons:
        announcer.warn(f"the load client was not exact: {reason}")
    if result.validity.mend:
        announcer.warn(f"for exact numbers: {result.validity.mend}")
    return result


# -- what came of it -------------------------------------------------------------------------------------


def _to_json(
    summary: TrialSummary, classes: tuple[ClassAttainment, ...], result: LoadResult, schedule: Schedule
) -> dict[str, object]:
    return summary.to_mapping() | {
        "classes": [one.to_mapping() for one in classes],
        "parity": result.parity.to_mapping(),
        "validity": result.validity.to_mapping(),
        "notes": [*schedule.notes, *result.notes],
    }


def _lines(summary: TrialSummary, result: LoadResult) -> list[str]:
    outcomes = ", ".join(f"{count} {name}" for name, count in summary.counts.items() if count)
    long = ttft_line(summary.long_ttft_p50_s, summary.long_ttft_p95_s, summary.long_ttft_n)
    short = ttft_line(summary.short_ttft_p50_s, summary.short_ttft_p95_s, summary.short_ttft_n)
    share, low, high = summary.attainment, summary.attainment_low, summary.attainment_high
    parity = result.parity
    return [
        f"requests       {summary.num_scheduled}: {outcomes}",
        f"lengths        {parity.exact_prompts} of {parity.prompts} prompts and {parity.exact_outputs} of "
        f"{parity.outputs} answers as planned",
        f"worst pause    {in_seconds(summary.worst_pause_s)} of {summary.num_streams} streams",
        f"long TTFT      {long}",
        f"short TTFT     {short}",
        f"attainment     {share:.0%} (95 % interval {low:.0%} to {high:.0%})",
    ]


def _class_line(one: ClassAttainment) -> str:
    target = "" if one.slo.ttft_long_s is None else f"first token within {one.slo.ttft_long_s:.3g} s, "
    return (
        f"  {one.name:<12} {one.attainment:.0%} of {one.num_scheduled} ({one.low:.0%} to {one.high:.0%}): "
        f"{target}no pause over {one.slo.pause_s:g} s"
    )


def ttft_line(p50_s: float | None, p95_s: float | None, n: int) -> str:
    """The highest percentile that `n` samples support; of very few the worst, which their p95 is."""
    if supported(0.95, n):
        return f"{in_seconds(p95_s)} (p95 of {n})"
    if supported(0.5, n):
        return f"{in_seconds(p50_s)} (median of {n})"
    return f"{in_seconds(p95_s)} (worst of {n})"
