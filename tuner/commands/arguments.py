"""Parts of a command line: the parser, and what arguments may say; anything else is one line of complaint."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from engine.core.slo import parse_duration
from tuner.errors import EXIT_USAGE


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def command(commands: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Parser:
    parser: Parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=run)
    return parser


def duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration_or_zero(text: str) -> float:
    return 0.0 if text.strip() in ("0", "0s") else duration(text)


def speed(text: str) -> float:
    factor = _number(text)
    if not 0.001 <= factor <= 1000.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor from 0.001 to 1000")
    return factor


def share(text: str) -> float:
    part = _number(text)
    if not 0.0 < part <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and up to 1")
    return part


def rate(text: str) -> float:
    number = _number(text)
    if not 0.0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate from 0 on")
    return number


def above_zero(text: str) -> float:
    number = rate(text)
    if number == 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def positive(text: str) -> int:
    number = count(text)
    if number == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def port(text: str) -> int:
    # Checked here, for the resolver takes larger numbers modulo 65536.
    if not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; there are 0 to 65535")
    return int(text)


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)
