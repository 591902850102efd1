"""ShareGPT's conversations: a JSON array, or JSON Lines, of texts without times.

Every answer is a request whose prompt is the conversation before it. Conversations start by a seeded arrival
process, and within one a person thinks for a seeded while before each further turn.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from engine.core.errors import TraceError
from engine.core.trace import TraceHeader, TraceRow
from loadtests.traces.blocks import GrowingPrompts
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading, TokenCounter, interleave, session_starts
from loadtests.traces.source import Source

NAME = "sharegpt"
_BLOCK_TOKENS = 64
_THINK_S = 20.0  # mean of an exponential distribution
_ANSWERS = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})
_BETWEEN = " \t\r\n,["
_PIECE_CHARS = 1 << 16
_MAX_CHARS = 1 << 26  # of one conversation


def recognises(head: str) -> bool:
    """Whether a file starting so is of this format."""
    start = head.lstrip()
    return start[:1] in ("[", "{") and start[1:].lstrip()[:1] in ("{", '"') and '"conversations"' in start


def read(source: Source, reading: Reading, notes: Notes) -> tuple[TraceHeader, Iterator[TraceRow]]:
    """The requests by time; conversation by conversation when all start at 0.

    Raises:
        TraceError: no counter of tokens is given, or a conversation is at fault.
    """
    if reading.counter is None:
        raise TraceError(
            f"{source.name}: the conversations are text; name a tokenizer to count them with "
            "(--tokenizer tokenizer.json, or the URL of an engine)"
        )
    starts = session_starts(reading, notes, "conversations have no times")
    sessions = _sessions(source, reading.counter, starts, random.Random(f"{reading.seed}/think"), notes)
    header = TraceHeader(block=_BLOCK_TOKENS)
    if reading.sessions_per_minute:
        return header, interleave(sessions)
    return header, (row for _, rows in sessions for row in rows)


def _sessions(
    source: Source, counter: TokenCounter, starts: Iterator[float], rng: random.Random, notes: Notes
) -> Iterator[tuple[float, Iterator[TraceRow]]]:
    for index, ((line, value), start_s) in enumerate(
        zip(_conversations(source), starts, strict=False), start=1
    ):
        messages = _messages(source, line, index, value, counter)
        yield start_s, _turns(f"{NAME}-{index}", messages, start_s, rng, notes)


def _turns(
    name: str, messages: Iterable[tuple[str, int]], start_s: float, rng: random.Random, notes: Notes
) -> Iterator[TraceRow]:
    """A request for every answer among the messages (who, tokens) of one conversation."""
    prompts = GrowingPrompts(name, _BLOCK_TOKENS)
    t, history, shared, turn = start_s, 0, 0, 0
    for who, tokens in messages:
        if who in _ANSWERS:
            think_s = rng.expovariate(1.0 / _THINK_S) if turn else None
            notes.count(f"think times drawn, {_THINK_S:g} s on average", int(turn > 0))
            t += think_s or 0.0
            yield TraceRow(
                id=f"{name}.{turn + 1}",
                t=t,
                prompt_tokens=history,
                output_tokens=tokens,
                session=name,
                turn=turn + 1,
                after=f"{name}.{turn}" if turn else None,
                think_s=think_s,
                prefix=prompts.turn(history, shared),
            )
            turn, shared = turn + 1, history + tokens
        history += tokens


def _messages(
    source: Source, line: int, index: int, value: Any, counter: TokenCounter
) -> Iterator[tuple[str, int]]:
    messages = value.get("conversations") if isinstance(value, dict) else None
    field = f"conversations of conversation {index}"
    if not isinstance(messages, list):
        source.fail(line, field, "a list of {from, value}", messages)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("value"), str):
            source.fail(line, field, "a list of {from, value}", message)
        yield str(message.get("from")), counter.text(message["value"])


def _conversations(source: Source) -> Iterator[tuple[int, Any]]:
    """Every conversation with the number of the line it starts in."""
    return source.objects() if source.head.lstrip().startswith("{") else _items(source)


def _items(source: Source) -> Iterator[tuple[int, Any]]:
    """The items of a JSON array, one at a time."""
    pieces, text, line, decode = source.pieces(), "", 1, json.JSONDecoder().raw_decode
    while True:
        start = len(text) - len(text.lstrip(_BETWEEN))
        line += text.count("\n", 0, start)
        text = text[start:]
        if text.startswith("]"):
            return
        try:
            value, end = decode(text)
        except (ValueError, RecursionError) as error:
            more = "".join(islice(pieces, 1 + len(text) // _PIECE_CHARS))  # doubles what is decoded anew
            if not more or len(text) > _MAX_CHARS:
                raise TraceError(f"{source.name}, line {line}: not a whole JSON array ({error})") from None
            text += more
            continue
        yield line, value
        line += text.count("\n", 0, end)
        text = text[end:]
