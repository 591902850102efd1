"""Azure's LLM inference traces: CSV with wall-clock stamps.

Source: github.com/Azure/AzurePublicDataset. The files of 2023 have naive stamps with seven fractional
digits, those of 2024 have `+00:00` and six; the latter are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain

from engine.core.errors import TraceError
from engine.core.trace import TraceHeader, TraceRow
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading, wall_clock
from loadtests.traces.source import Source

NAME = "azure"
CARRIES = frozenset({"t", "prompt_tokens", "output_tokens"})
HEADER_CARRIES = frozenset({"t0"})
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SEVENTH = re.compile(r"(\.\d{6})(\d)\d*")
_UNKNOWN_T0 = datetime(2000, 1, 1, tzinfo=UTC)


def recognises(head: str) -> bool:
    """Whether a file starting so is of this format."""
    return head.replace(" ", "").startswith(",".join(_COLUMNS))


def read(source: Source, reading: Reading, notes: Notes) -> tuple[TraceHeader, Iterator[TraceRow]]:
    """The requests, in file order; the first one's stamp is the header's `t0`.

    Raises:
        TraceError: a line or field at fault, or a stamp before the first one's.
    """
    table = source.table(_COLUMNS)
    first = next(table, None)
    if first is None:
        return TraceHeader(), iter(())
    start, _ = _stamp(source, first[0], first[1][0])
    return TraceHeader(t0=start.isoformat()), _rows(source, chain([first], table), start)


def _rows(
    source: Source, table: Iterable[tuple[int, tuple[str, ...]]], start: datetime
) -> Iterator[TraceRow]:
    for number, (text, prompt, output) in table:
        stamp, beyond_s = _stamp(source, number, text)
        seconds = (stamp - start).total_seconds() + beyond_s
        if seconds < 0:
            source.fail(number, "TIMESTAMP", "no earlier than the first row's", text)
        yield TraceRow(
            id=f"{NAME}-{number}",
            t=seconds,
            prompt_tokens=source.whole(number, "ContextTokens", prompt),
            output_tokens=source.whole(number, "GeneratedTokens", output),
        )


def _stamp(source: Source, number: int, text: str) -> tuple[datetime, float]:
    """The stamp to the microsecond, and the seconds beyond it."""
    seventh = _SEVENTH.search(text)
    try:
        stamp = datetime.fromisoformat(_SEVENTH.sub(r"\1", text.strip()))
        stamp = stamp.astimezone(UTC) if stamp.tzinfo else stamp.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        source.fail(number, "TIMESTAMP", "a date and time", text)
    beyond_s = int(seventh[2]) / 1e7 if seventh else 0.0
    return stamp, beyond_s


def write(rows: Iterable[TraceRow], header: TraceHeader, notes: Notes) -> Iterator[str]:
    """The file's lines, without line breaks."""
    start = wall_clock(header.t0)
    if start is None:
        start = _UNKNOWN_T0
        notes.say(f"the header's t0 is no instant: stamps count from {start:%Y-%m-%d}")
    yield ",".join(_COLUMNS)
    for row in rows:
        try:
            stamp = (start + timedelta(seconds=row.t)).isoformat(" ", timespec="microseconds")
        except OverflowError:
            raise TraceError(
                f"request {row.id}: t is {row.t:g} s, beyond all dates azure can write"
            ) from None
        yield f"{stamp},{row.prompt_tokens},{row.output_tokens}"
