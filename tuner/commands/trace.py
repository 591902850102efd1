"""The `tuner trace` commands: what a trace holds, and traces in other forms."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from rich.console import Console

from engine.core.errors import TraceError
from loadtests.doctor.describe import lines
from loadtests.doctor.examine import Questions, examine
from loadtests.traces.convert import Conversion, convert
from loadtests.traces.counting import open_counter
from loadtests.traces.files import open_trace
from loadtests.traces.reading import Reading
from tuner.errors import TunerError
from tuner.preflight import read_key
from tuner.reporting.terminal import TerminalAnnouncer

_LABEL_COLUMN = 15


def run_show(arguments: argparse.Namespace) -> int:
    """Examines a trace and prints what it holds and what is wrong with it. Raises: TunerError."""
    questions = Questions(
        context_tokens=arguments.context,
        long_prompt_tokens=arguments.long,
        stream_rate=arguments.stream_rate,
        seed=arguments.seed,
    )
    try:
        with TerminalAnnouncer(Console(stderr=True)) as announcer:
            announcer.doing(f"reading {arguments.trace}")
            seen = examine(open_trace(arguments.trace, _reading(arguments)), questions)
    except TraceError as error:
        raise TunerError(str(error)) from error
    if arguments.json:
        print(json.dumps(seen.to_mapping(), allow_nan=False))
        return 0
    for label, text in lines(seen):
        print(f"{label:<{_LABEL_COLUMN}}{text}".rstrip())
    for note in seen.notes:
        print(f"· {note}")
    for finding in seen.findings:
        print(f"! {finding.what}: {finding.fix}")
    return 0


def run_convert(arguments: argparse.Namespace) -> int:
    """Writes one trace from others, and says what was done to it. Raises: TunerError."""
    conversion = Conversion(
        to=arguments.to,
        mend=not arguments.as_is,
        start_s=arguments.start,
        end_s=arguments.until,
        keep_share=arguments.keep,
        max_idle_s=arguments.max_idle,
        speed=arguments.speed,
        context_tokens=arguments.context,
        overlay=arguments.overlay,
        redact=arguments.redact,
    )
    inputs, out = [Path(name) for name in arguments.inputs], Path(arguments.out)
    announcer = TerminalAnnouncer(Console(stderr=True))
    try:
        num_rows, notes = convert(inputs, out, conversion, _reading(arguments), force=arguments.force)
    except TraceError as error:
        raise TunerError(str(error)) from error
    for note in notes:
        announcer.warn(note)
    announcer.say(f"{out}: {num_rows} requests")
    return 0


def _reading(arguments: argparse.Namespace) -> Reading:
    key = read_key(arguments.api_key_file, os.environ.get("EVENFLOW_API_KEY"))
    return Reading(
        seed=arguments.seed,
        sessions_per_minute=arguments.sessions_per_minute,
        counter=open_counter(arguments.tokenizer, key) if arguments.tokenizer else None,
    )
