"""Parts of a command line: the parser, and what arguments may say; anything else is one line of complaint."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from engine.core.slo import parse_duration
from tuner.errors import EXIT_USAGE

_LONGEST_PAUSE_S = 30.0  # the paced policy can aim at twice as much, so the search may look a little beyond
_FEW_WORKERS = 8
_MAX_SEED = 1_000_000_000
_MAX_NAME = 100


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def refuse_empty(self, words: Sequence[str]) -> None:
        """An empty value would be taken for none: a shell makes it of a variable that is not set."""
        for option, word in zip(("", *words), words, strict=False):
            if not word.strip():
                self.error(
                    f"{f'the value of {option}' if option.startswith('--') else 'an argument'} is empty"
                )
            if re.fullmatch(r"--[\w-]+=\s*", word):
                self.error(f"the value of {word.partition('=')[0]} is empty")

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            message += ", and one that begins with - is written after a =, as in --option=-5"
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


def pause(text: str) -> float:
    """A pause that can be tuned for."""
    seconds = duration(text)
    if seconds > _LONGEST_PAUSE_S:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_LONGEST_PAUSE_S:g} s, which is no stream")
    return seconds


def seed(text: str) -> int:
    """Small enough for any database, with room for the seeds that are counted up from it."""
    number = int(text) if text.isdecimal() and len(text) < 20 else _MAX_SEED + 1
    if number > _MAX_SEED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {_MAX_SEED:,}")
    return number


def study_name(text: str) -> str:
    """A name that fits into a table, a file's name and a command line."""
    if len(text) > _MAX_NAME or not text.isprintable() or "/" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no name: 1 to {_MAX_NAME} printable characters, no /")
    return text


def workers(text: str) -> int:
    """Load processes: more than cores take turns, and a slip of the finger would stop the machine."""
    number, most = positive(text), max(_FEW_WORKERS, os.cpu_count() or 1)
    if number > most:
        raise argparse.ArgumentTypeError(
            f"{number} load processes are too many for this machine; at most {most}"
        )
    return number


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
