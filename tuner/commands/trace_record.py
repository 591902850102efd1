"""The `tuner trace record` command: a proxy in front of any OpenAI-compatible server, which records."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.commands.arguments import command, count, port
from tuner.errors import TunerError

if TYPE_CHECKING:
    from loadtests.client.target import Target
    from loadtests.recording.serve import Progress
    from tuner.reporting.terminal import TerminalAnnouncer


def add_record(actions: Any) -> None:
    """Adds the command to those of `tuner trace`."""
    parser = command(
        actions, "record", "record the traffic of any server, as a proxy in front of it", run_record
    )
    add = parser.add_argument
    add("--from", dest="upstream", required=True, metavar="URL", help="the server: any with OpenAI's API")
    add("--out", type=Path, required=True, metavar="TRACE.jsonl", help="the file to write")
    add(
        "--port",
        type=port,
        default=8081,
        metavar="P",
        help="of the proxy, on 127.0.0.1 (default 8081; 0: any)",
    )
    add(
        "--max-bytes",
        type=count,
        default=256 << 20,
        metavar="N",
        help="the recording goes on in TRACE.part-2.jsonl then (default %(default)s; 0: never)",
    )
    add(
        "--api-key-file",
        type=Path,
        metavar="F",
        help="for the first question to the server; or $EVENFLOW_API_KEY",
    )
    add("--json", action="store_true", help="one JSON object on stdout at the end")


def run_record(arguments: argparse.Namespace) -> int:
    """Passes traffic on and records it until Ctrl-C. Raises: TunerError."""
    from rich.console import Console

    from loadtests.client.target import Target
    from loadtests.errors import LoadTestError
    from loadtests.recording.counting import counts_tokens
    from loadtests.recording.serve import RecordOptions, record
    from tuner.preflight import read_key
    from tuner.reporting.terminal import TerminalAnnouncer

    key = read_key(arguments.api_key_file, os.environ.get("EVENFLOW_API_KEY"))
    try:
        target = Target(arguments.upstream, api_key=key)
        options = RecordOptions(
            upstream=target.url,
            out=arguments.out,
            port=arguments.port,
            counts_tokens=counts_tokens(target),
            max_bytes=arguments.max_bytes,
        )
        with TerminalAnnouncer(Console(stderr=True)) as announcer:
            progress = record(
                options,
                lambda url: _say_ready(announcer, target, url, options.counts_tokens),
                lambda progress: announcer.doing(_so_far(progress)),
            )
            _warn(announcer, progress)
    except LoadTestError as error:
        raise TunerError(str(error)) from error
    _print(arguments, progress)
    if progress.tally.fault:
        raise TunerError(f"{progress.tally.fault}; {progress.tally.num_rows} requests were recorded before")
    return 0


def _say_ready(announcer: TerminalAnnouncer, target: Target, url: str, counts: bool) -> None:
    announcer.say(f"recording {target.url}: send to {url} instead; Ctrl-C ends it")
    if not counts:
        announcer.warn(
            "the server has no /tokenize for conversations: prompts are as long as `usage` says, or "
            "estimated and marked so; shared prefixes are told in characters"
        )


def _so_far(progress: Progress) -> str:
    return f"{progress.tally.num_rows} requests recorded, {progress.num_running} running"


def _warn(announcer: TerminalAnnouncer, progress: Progress) -> None:
    tally = progress.tally
    found = {
        "rows with estimated lengths, for answers without `usage`": tally.num_estimated,
        "no rows, for requests that did not ask for one answer to one prompt": tally.num_unreadable,
        "no rows, for the disk was too slow": tally.num_dropped,
    }
    found |= {f"passed on and no rows, to {path}": number for path, number in progress.unrecorded.items()}
    for what, number in found.items():
        if number:
            announcer.warn(f"{what}: {number}")


def _print(arguments: argparse.Namespace, progress: Progress) -> None:
    tally = progress.tally
    if arguments.json:
        answer = {
            "trace": str(arguments.out),
            "requests": tally.num_rows,
            "estimated": tally.num_estimated,
            "unreadable": tally.num_unreadable,
            "dropped": tally.num_dropped,
            "other_routes": dict(progress.unrecorded),
        }
        print(json.dumps(answer))
    else:
        print(f"{arguments.out}: {tally.num_rows} requests")
