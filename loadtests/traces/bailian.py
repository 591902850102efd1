"""Qwen-Bailian usage traces: JSON Lines of chats, turn by turn, with 16-token prefix blocks.

Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon. A turn's lengths and blocks are those of the
whole request as the service got it, history included. They do not say how long users thought.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from engine.core.json_text import parse_json
from engine.core.trace import TraceHeader, TraceRow
from loadtests.traces.blocks import names_of, number_of, numbered
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading
from loadtests.traces.source import Source

NAME = "bailian"
CARRIES = frozenset({"id", "t", "prompt_tokens", "output_tokens", "after", "turn", "prefix"})
HEADER_CARRIES: frozenset[str] = frozenset({"block"})
_BLOCK_TOKENS = 16
_ROOT = "-1"


def recognises(head: str) -> bool:
    """Whether a file starting so is of this format."""
    try:
        row = parse_json(head)
    except ValueError:
        return False
    return isinstance(row, dict) and {"chat_id", "timestamp", "input_length"} <= set(row)


def read(source: Source, reading: Reading, notes: Notes) -> tuple[TraceHeader, Iterator[TraceRow]]:
    """The requests, in file order; a session is named by the chat it began with.

    Raises:
        TraceError: a line or field at fault.
    """
    return TraceHeader(block=_BLOCK_TOKENS), _rows(source, notes)


def _rows(source: Source, notes: Notes) -> Iterator[TraceRow]:
    roots: dict[str, str] = {}  # by chat, of chats that are not their own root
    for number, raw in source.objects():
        chat, parent = _name(source, number, raw, "chat_id"), _name(source, number, raw, "parent_chat_id")
        after = None if parent == _ROOT else parent
        if after is not None:
            roots[chat] = roots.get(after, after)
        notes.count("values of type left out: a trace row has no place for it", int("type" in raw))
        yield TraceRow(
            id=chat,
            t=source.seconds(number, "timestamp", raw.get("timestamp")),
            prompt_tokens=source.whole(number, "input_length", raw.get("input_length")),
            output_tokens=source.whole(number, "output_length", raw.get("output_length")),
            session=roots.get(chat, chat),
            turn=None if raw.get("turn") is None else source.whole(number, "turn", raw["turn"]),
            after=after,
            prefix=names_of(source, number, raw.get("hash_ids")),
        )


def _name(source: Source, number: int, raw: dict[str, Any], field: str) -> str:
    value = raw.get(field, _ROOT if field == "parent_chat_id" else None)
    if isinstance(value, bool) or not isinstance(value, int | str):
        source.fail(number, field, "a chat's number", value)
    return str(value)


def write(rows: Iterable[TraceRow], header: TraceHeader, notes: Notes) -> Iterator[str]:
    """The file's lines, without line breaks."""
    notes.say("bailian wants a type: written as text throughout")
    for row in rows:
        chat = number_of(row.id)
        notes.count("values of id turned into numbers", int(str(chat) != row.id))
        raw: dict[str, Any] = {
            "chat_id": chat,
            "parent_chat_id": -1 if row.after is None else number_of(row.after),
            "timestamp": row.t,
            "input_length": row.prompt_tokens,
            "output_length": row.output_tokens,
            "type": "text",
            "turn": row.turn,
            "hash_ids": numbered(row, header, _BLOCK_TOKENS, notes),
        }
        yield json.dumps({name: value for name, value in raw.items() if value is not None})
