"""Mooncake's traces, and AIPerf's superset of them: JSON Lines with 512-token prefix blocks.

Sources: the traces published with "Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving"
(FAST 2025); AIPerf's documentation of `mooncake_trace` (github.com/ai-dynamo/aiperf). There the later turns
of a session give only what they add to the conversation, unless `context_mode` or the kind of input says
that they are whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.core.errors import TraceError
from engine.core.json_text import parse_json
from engine.core.trace import TraceHeader, TraceRow
from loadtests.traces.blocks import GrowingPrompts, names_of, numbered
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading, session_starts
from loadtests.traces.source import Source

NAME = "mooncake"
CARRIES = frozenset({"t", "prompt_tokens", "output_tokens", "prefix", "session", "after", "think_s"})
HEADER_CARRIES: frozenset[str] = frozenset({"block"})
_BLOCK_TOKENS = 512
_INPUTS = ("input_length", "text_input", "messages", "payload")
_WHOLE = "message_array_with_responses"


def recognises(head: str) -> bool:
    """Whether a file starting so is of this format."""
    try:
        row = parse_json(head)
    except ValueError:
        return False
    return isinstance(row, dict) and "chat_id" not in row and any(name in row for name in _INPUTS)


def read(source: Source, reading: Reading, notes: Notes) -> tuple[TraceHeader, Iterator[TraceRow]]:
    """The requests, in file order; times are milliseconds in the file.

    Raises:
        TraceError: a line or field at fault, or text without a counter of its tokens.
    """
    return TraceHeader(block=_BLOCK_TOKENS), _Reader(source, reading, notes).rows()


@dataclass(slots=True)
class _Session:
    last: TraceRow
    turn: int
    prompts: GrowingPrompts


class _Reader:
    def __init__(self, source: Source, reading: Reading, notes: Notes) -> None:
        self.source, self.counter, self.notes = source, reading.counter, notes
        self.sessions: dict[str, _Session] = {}
        self.starts = session_starts(reading, notes, "requests have no timestamp")

    def rows(self) -> Iterator[TraceRow]:
        for number, raw in self.source.objects():
            name = raw.get("session_id")
            before = self.sessions.get(str(name)) if name is not None else None
            row = self._row(number, raw, before)
            if name is not None:
                row = self._turn(row, raw, before)
            yield row

    def _row(self, number: int, raw: dict[str, Any], before: _Session | None) -> TraceRow:
        """The row by itself, whatever its session."""
        source, delay, session = self.source, raw.get("delay"), raw.get("session_id")
        if session is not None and not isinstance(session, int | str):
            source.fail(number, "session_id", "a text", session)
        think_s = None if delay is None else source.seconds(number, "delay", delay) / 1000
        return TraceRow(
            id=f"{NAME}-{number}",
            t=self._time(number, raw.get("timestamp"), think_s, before),
            prompt_tokens=self._prompt_tokens(number, raw),
            output_tokens=source.whole(number, "output_length", _output(raw)),
            session=None if session is None else str(session),
            think_s=think_s,
            prefix=names_of(source, number, raw.get("hash_ids")),
        )

    def _time(self, number: int, stamp: Any, think_s: float | None, before: _Session | None) -> float:
        if stamp is not None:
            return self.source.seconds(number, "timestamp", stamp) / 1000
        if before is None:
            return next(self.starts)
        self.notes.count("turns have no timestamp: placed their delay after the turn before was sent")
        return before.last.t + (think_s or 0.0)

    def _prompt_tokens(self, number: int, raw: dict[str, Any]) -> int:
        given = [name for name in _INPUTS if raw.get(name) is not None]
        if len(given) != 1:
            told = ", ".join(given) or "none of them"
            self.source.fail(number, "the input", "exactly one of " + ", ".join(_INPUTS), told)
        kind, value = given[0], raw[given[0]]
        if kind == "input_length":
            return self.source.whole(number, kind, value)
        if self.counter is None:
            raise TraceError(
                f"{self.source.name}, line {number}: {kind} holds text; name a tokenizer to count it with "
                "(--tokenizer tokenizer.json, or the URL of an engine)"
            )
        if kind == "payload":
            value = value.get("messages", value.get("prompt")) if isinstance(value, dict) else value
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return self.counter.messages(value)
        if isinstance(value, str):
            return self.counter.text(value)
        return self.source.fail(number, kind, "a text or a list of messages", value)

    def _turn(self, row: TraceRow, raw: dict[str, Any], before: _Session | None) -> TraceRow:
        """The row as a turn of its session."""
        assert row.session is not None
        if before is None:
            prompts = GrowingPrompts(row.session, _BLOCK_TOKENS, row.prefix)
            turn = TraceRow(**_fields(row), turn=1)
            self.sessions[row.session] = _Session(turn, 1, prompts)
            return turn
        before.turn += 1
        values = _fields(row) | {"turn": before.turn, "after": before.last.id}
        if _adds(raw):
            history = before.last.prompt_tokens + before.last.output_tokens
            values["prompt_tokens"] = history + row.prompt_tokens
            values["prefix"] = before.prompts.turn(values["prompt_tokens"], history)
            self.notes.count("turns give only what they add: the conversation so far was put before it")
        before.last = TraceRow(**values)
        return before.last


def _fields(row: TraceRow) -> dict[str, Any]:
    names = ("id", "t", "prompt_tokens", "output_tokens", "session", "think_s", "prefix")
    return {name: getattr(row, name) for name in names}


def _adds(raw: dict[str, Any]) -> bool:
    """Whether a turn gives only what it adds to the conversation."""
    if "messages" in raw or "payload" in raw:
        return raw.get("message_mode") == "delta"
    return raw.get("context_mode") != _WHOLE


def _output(raw: dict[str, Any]) -> Any:
    if (length := raw.get("output_length")) is not None or not isinstance(raw.get("payload"), dict):
        return length
    return raw["payload"].get("max_completion_tokens", raw["payload"].get("max_tokens"))


def write(rows: Iterable[TraceRow], header: TraceHeader, notes: Notes) -> Iterator[str]:
    """The file's lines, without line breaks; AIPerf's fields only where rows are in sessions."""
    last: dict[str, str] = {}
    for row in rows:
        follows = row.after is None or (row.session is not None and last.get(row.session) == row.after)
        notes.count("values of after left out: not the session's turn before", int(not follows))
        milliseconds = round(row.t * 1000.0, 6)
        raw: dict[str, Any] = {
            "timestamp": int(milliseconds) if milliseconds.is_integer() else milliseconds,
            "input_length": row.prompt_tokens,
            "output_length": row.output_tokens,
        }
        if hash_ids := numbered(row, header, _BLOCK_TOKENS, notes):
            raw["hash_ids"] = hash_ids
        if row.session is not None:
            raw |= {"session_id": row.session, "context_mode": _WHOLE}
            last[row.session] = row.id
        if row.think_s is not None:
            raw["delay"] = round(row.think_s * 1000, 6)
        yield json.dumps(raw, ensure_ascii=False)
