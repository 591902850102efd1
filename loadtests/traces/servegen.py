"""ServeGen-style traces: CSV of anonymous clients' requests, times in seconds."""

from __future__ import annotations

from collections.abc import Iterator

from engine.core.trace import TraceRow
from loadtests.traces.lines import Lines

NAME = "servegen"
BLOCK_TOKENS = 0


def recognises(first: str) -> bool:
    """Whether a file starting so is of this format."""
    return first.replace(" ", "").startswith("timestamp_s,client,input_tokens,output_tokens")


def read(lines: Lines) -> Iterator[TraceRow]:
    """The requests, in file order.

    Raises:
        TraceError: a line or field at fault.
    """
    for line, row in lines.csv_rows():
        yield TraceRow(
            id=f"{NAME}-{line.number}",
            t=lines.seconds(line, row, "timestamp_s"),
            prompt_tokens=lines.tokens(line, row, "input_tokens"),
            output_tokens=lines.tokens(line, row, "output_tokens"),
            user=row["client"],
        )
