"""The command line of `tuner trace`. Imports are late: `--help` must be fast."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tuner.commands.arguments import (
    Parser,
    above_zero,
    command,
    duration,
    duration_or_zero,
    positive,
    rate,
    share,
    speed,
)
from tuner.commands.trace_record import add_record

_FORMATS = "evenflow (default), mooncake or aiperf, azure, burstgpt, servegen, bailian or qwen, agents"


def add_trace(commands: Any) -> None:
    """Adds the group to the parsers of `tuner`."""
    text = "look at recorded traffic, or bring it into another form"
    parser = commands.add_parser("trace", help=text, description=text[0].upper() + text[1:] + ".")
    actions = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    _add_show(actions)
    _add_convert(actions)
    add_record(actions)


def _add_show(actions: Any) -> None:
    parser = command(actions, "show", "what a trace holds, and what is wrong with it", _show)
    add = parser.add_argument
    add("trace", metavar="TRACE", help="a recorded trace, or one of the known public formats")
    add("--context", type=positive, metavar="N", help="tokens of the model's context")
    add("--long", type=positive, metavar="N", help="tokens of a long prompt (default: the longest tenth)")
    add(
        "--stream-rate",
        type=above_zero,
        default=30.0,
        metavar="X",
        help="tokens a second of answers whose times are not recorded, for the concurrency (default 30)",
    )
    _add_reading(parser)
    add("--json", action="store_true", help="one JSON object on stdout")


def _add_convert(actions: Any) -> None:
    parser = command(actions, "convert", "mend, merge, cut or redact traces into one", _convert)
    add = parser.add_argument
    add("inputs", nargs="+", metavar="IN", help="traces of any known format; several are merged")
    add("out", metavar="OUT", help="the file to write")
    add("--to", default="evenflow", metavar="FORMAT", help=_FORMATS)
    add(
        "--from",
        dest="start",
        type=duration_or_zero,
        default=0.0,
        metavar="10m",
        help="leave out what is before",
    )
    add("--until", type=duration, metavar="20m", help="leave out what is after")
    add("--keep", type=share, default=1.0, metavar="0.2", help="this share of the users, or sessions")
    add("--max-idle", type=duration, metavar="60s", help="shorten longer silences to this")
    add("--speed", type=speed, default=1.0, metavar="X", help="2 puts everything in half the time")
    add("--context", type=positive, metavar="N", help="cut prompts that do not fit so many tokens")
    add("--overlay", action="store_true", help="start all inputs at once, whatever their clocks say")
    add("--redact", action="store_true", help="hash all names anew with a salt that nobody keeps")
    add("--as-is", action="store_true", help="mend nothing")
    add("--force", action="store_true", help="replace OUT when it is there")
    _add_reading(parser)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--sessions-per-minute",
        type=rate,
        default=1.0,
        metavar="X",
        help="starts of sessions in files without a common clock; 0 starts all at once (default 1)",
    )
    add("--tokenizer", metavar="F|URL", help="counts the tokens of text: a tokenizer.json, or an engine")
    add("--seed", type=int, default=1, metavar="N", help="of all that is drawn (default %(default)s)")
    add("--api-key-file", type=Path, metavar="F", help="of that engine; or $EVENFLOW_API_KEY")


def _show(arguments: argparse.Namespace) -> int:
    from tuner.commands.trace import run_show

    return run_show(arguments)


def _convert(arguments: argparse.Namespace) -> int:
    from tuner.commands.trace import run_convert

    return run_convert(arguments)
