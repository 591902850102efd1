"""BurstGPT's traces: CSV, times in seconds; a response of no tokens is a failed request.

Source: github.com/HPMLL/BurstGPT. Later versions add a session and the request's whole time.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.core.trace import TraceOriginal, TraceRow
from loadtests.traces.lines import Lines

NAME = "burstgpt"
BLOCK_TOKENS = 0


def recognises(first: str) -> bool:
    """Whether a file starting so is of this format."""
    names = {name.strip() for name in first.split(",")}
    return {"Timestamp", "Request tokens", "Response tokens"} <= names


def read(lines: Lines) -> Iterator[TraceRow]:
    """The requests, in file order; failed ones carry the original status "failed".

    Raises:
        TraceError: a line or field at fault.
    """
    for line, row in lines.csv_rows():
        output = lines.tokens(line, row, "Response tokens")
        whole_s = lines.seconds(line, row, "Elapsed time") if row.get("Elapsed time") else None
        yield TraceRow(
            id=f"{NAME}-{line.number}",
            t=lines.seconds(line, row, "Timestamp"),
            prompt_tokens=lines.tokens(line, row, "Request tokens"),
            output_tokens=output,
            session=row.get("Session ID") or None,
            orig=TraceOriginal(status="ok" if output else "failed", e2e_s=whole_s),
        )
