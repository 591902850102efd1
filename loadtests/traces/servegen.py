"""ServeGen-style traces: CSV of anonymous clients' requests, times in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.core.trace import TraceHeader, TraceRow
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading
from loadtests.traces.source import Source, cell

NAME = "servegen"
CARRIES = frozenset({"t", "prompt_tokens", "output_tokens", "user"})
HEADER_CARRIES: frozenset[str] = frozenset()
_COLUMNS = ("timestamp_s", "client", "input_tokens", "output_tokens")


def recognises(head: str) -> bool:
    """Whether a file starting so is of this format."""
    return head.replace(" ", "").startswith(",".join(_COLUMNS))


def read(source: Source, reading: Reading, notes: Notes) -> tuple[TraceHeader, Iterator[TraceRow]]:
    """The requests, in file order; the client is the row's user.

    Raises:
        TraceError: a line or field at fault.
    """
    return TraceHeader(), _rows(source)


def _rows(source: Source) -> Iterator[TraceRow]:
    for number, (t, client, prompt, output) in source.table(_COLUMNS):
        yield TraceRow(
            id=f"{NAME}-{number}",
            t=source.seconds(number, "timestamp_s", t),
            prompt_tokens=source.whole(number, "input_tokens", prompt),
            output_tokens=source.whole(number, "output_tokens", output),
            user=client or None,
        )


def write(rows: Iterable[TraceRow], header: TraceHeader, notes: Notes) -> Iterator[str]:
    """The file's lines, without line breaks."""
    yield ",".join(_COLUMNS)
    for row in rows:
        yield f"{row.t!r},{cell(row.user)},{row.prompt_tokens},{row.output_tokens}"
