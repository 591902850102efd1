"""What the reader of a trace is told where a file does not say it, and sessions placed in time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush
from typing import Any, Protocol

from engine.core.trace import TraceRow
from loadtests.traces.fixes import Notes


class TokenCounter(Protocol):
    """Counts the tokens of text."""

    def text(self, text: str) -> int:
        """Tokens of a plain text."""
        ...

    def messages(self, messages: list[dict[str, Any]]) -> int:
        """Tokens of a conversation in OpenAI's shape."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How what a file does not say is made up.

    Attributes:
        sessions_per_minute: of a Poisson process that places what has no common clock; 0 places all at 0.
        counter: counts the tokens of files that hold text; without one they are refused.
    """

    seed: int = 1
    sessions_per_minute: float = 1.0
    counter: TokenCounter | None = None


def session_starts(reading: Reading, notes: Notes, what: str) -> Iterator[float]:
    """One instant after another, the first at 0; counted in the notes.

    Args:
        what: is placed, and why, for the note.
    """
    rng = random.Random(f"{reading.seed}/starts")
    rate, at_s = reading.sessions_per_minute, 0.0
    how = f"by a Poisson process of {rate:g} a minute (seed {reading.seed})" if rate else "at 0"
    while True:
        notes.count(f"{what}: placed {how}")
        yield at_s
        at_s += rng.expovariate(rate / 60.0) if rate else 0.0


def wall_clock(text: str) -> datetime | None:
    """A header's `t0`; in UTC where it names no zone, None where it is no instant."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def interleave(sessions: Iterable[tuple[float, Iterable[TraceRow]]]) -> Iterator[TraceRow]:
    """The rows of sessions by time, given in the order of their starts; holds those that are not due yet."""
    waiting: list[tuple[float, int, TraceRow]] = []
    number = 0
    for start_s, rows in sessions:
        while waiting and waiting[0][0] <= start_s:
            yield heappop(waiting)[2]
        for row in rows:
            heappush(waiting, (row.t, number, row))
            number += 1
    while waiting:
        yield heappop(waiting)[2]
