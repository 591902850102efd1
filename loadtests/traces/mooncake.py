"""Mooncake's traces, and AIPerf's superset of them: JSON Lines with 512-token prefix blocks.

Source: the traces published with "Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving"
(FAST 2025). Of AIPerf's fields `session_id` and `delay` are read; rows that give text instead of lengths are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.core.errors import TraceError
from engine.core.json_text import parse_json
from engine.core.trace import TraceRow
from loadtests.traces.lines import Line, Lines

NAME = "mooncake"
BLOCK_TOKENS = 512


def recognises(first: str) -> bool:
    """Whether a file starting so is of this format."""
    try:
        row = parse_json(first)
    except ValueError:
        return False
    return isinstance(row, dict) and "timestamp" in row and "input_length" in row and "chat_id" not in row


def read(lines: Lines) -> Iterator[TraceRow]:
    """The requests, in file order; times are milliseconds in the file.

    Raises:
        TraceError: a line or field at fault.
    """
    for line in lines:
        row = _object(lines, line)
        hashes = row.get("hash_ids") or []
        if not isinstance(hashes, list):
            lines.fail(line, "hash_ids", "a list", hashes)
        session = row.get("session_id")
        yield TraceRow(
            id=f"{NAME}-{line.number}",
            t=lines.seconds(line, row, "timestamp") / 1000,
            prompt_tokens=lines.tokens(line, row, "input_length"),
            output_tokens=lines.tokens(line, row, "output_length"),
            prefix=tuple(str(item) for item in hashes),
            session=None if session is None else str(session),
            think_s=lines.seconds(line, row, "delay") / 1000 if "delay" in row else None,
        )


def _object(lines: Lines, line: Line) -> dict[str, Any]:
    try:
        row = parse_json(line.text)
    except ValueError as error:
        raise TraceError(f"{lines.source}, line {line.number}: not JSON ({error})") from None
    return row if isinstance(row, dict) else lines.fail(line, "the line", "a JSON object", line.text[:40])
