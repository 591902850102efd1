"""Azure's LLM inference traces: CSV with wall-clock stamps.

Source: github.com/Azure/AzurePublicDataset. The files of 2023 have naive stamps with seven fractional
digits, those of 2024 have `+00:00` and six.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from engine.core.trace import TraceRow
from loadtests.traces.lines import Line, Lines

NAME = "azure"
BLOCK_TOKENS = 0
_PAST_MICROSECONDS = re.compile(r"(\.\d{6})\d+")


def recognises(first: str) -> bool:
    """Whether a file starting so is of this format."""
    return first.replace(" ", "").startswith("TIMESTAMP,ContextTokens,GeneratedTokens")


def read(lines: Lines) -> Iterator[TraceRow]:
    """The requests, in file order; the first one's stamp is the start.

    Raises:
        TraceError: a line or field at fault, or a stamp before the first one's.
    """
    start: datetime | None = None
    for line, row in lines.csv_rows():
        stamp = _stamp(lines, line, row["TIMESTAMP"])
        start = start or stamp
        seconds = (stamp - start).total_seconds()
        if seconds < 0:
            lines.fail(line, "TIMESTAMP", "no earlier than the first row's", row["TIMESTAMP"])
        yield TraceRow(
            id=f"{NAME}-{line.number}",
            t=seconds,
            prompt_tokens=lines.tokens(line, row, "ContextTokens"),
            output_tokens=lines.tokens(line, row, "GeneratedTokens"),
        )


def _stamp(lines: Lines, line: Line, text: str) -> datetime:
    try:
        stamp = datetime.fromisoformat(_PAST_MICROSECONDS.sub(r"\1", text.strip()))
    except ValueError:
        lines.fail(line, "TIMESTAMP", "a date and time", text)
    return stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
