"""Our own format, version 1 (engine.core.trace)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from engine.core.trace import (
    TraceHeader,
    TraceOriginal,
    TraceRow,
    format_header,
    format_row,
    is_header,
    parse_header,
    parse_rows,
)
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading
from loadtests.traces.source import Source

NAME = "evenflow"
CARRIES = frozenset(
    {field.name for field in fields(TraceRow)} | {f"orig.{field.name}" for field in fields(TraceOriginal)}
)
HEADER_CARRIES = frozenset(field.name for field in fields(TraceHeader))


def recognises(head: str) -> bool:
    """Whether a file starting so is of this format, whatever its version."""
    return is_header(head)


def read(source: Source, reading: Reading, notes: Notes) -> tuple[TraceHeader, Iterator[TraceRow]]:
    """The header, and the requests in file order.

    Raises:
        TraceError: at once for the header, while iterating for a row.
    """
    lines = source.lines()
    _, first = next(lines)
    header = parse_header(first, source.name)
    return header, parse_rows(lines, header, source.name)


def write(rows: Iterable[TraceRow], header: TraceHeader, notes: Notes) -> Iterator[str]:
    """The file's lines, without line breaks."""
    yield format_header(header)
    yield from map(format_row, rows)
