from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.redaction import Redactor
from engine.core.trace import TraceRow, parse_row
from loadtests.errors import RecordingError
from loadtests.recording.counting import TokenCounter
from loadtests.recording.exchange import Exchange
from loadtests.recording.ledger import Ledger, Tally
from loadtests.selftest.scripted_server import event, text

REDACTOR = Redactor(b"salt" * 4)
Handler = Callable[[httpx.Request], httpx.Response]


class Lines(list[str]):
    """Where rows go; takes `room` of them."""

    def __init__(self, room: int = 1 << 30) -> None:
        self._room = room

    def append(self, line: str) -> None:
        if len(self) == self._room:
            raise RecordingError("the disk is full")
        super().append(line)


def exchange(
    body: dict[str, Any],
    at_s: float = 11.0,
    usage: int | None = None,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Exchange:
    """Two content events, and the end three seconds after the arrival."""
    seen = Exchange(json.dumps(body).encode(), headers or {}, at_s)
    seen.on_head(status, {"content-type": "text/event-stream"})
    seen.on_bytes(text() + text(), at_s + 1)
    counts = {} if usage is None else {"usage_tokens": 4, "prompt_tokens": usage}
    seen.on_bytes(event({}, finish="stop", **counts), at_s + 2)
    seen.on_end(at_s + 3)
    return seen


def chat(*contents: str, **values: Any) -> dict[str, Any]:
    roles = ("user", "assistant") * len(contents)
    messages = [{"role": role, "content": c} for role, c in zip(roles, contents, strict=False)]
    return {"messages": messages, "stream": True, **values}


def record(
    exchanges: Sequence[Exchange], handler: Handler | None = None, room: int = 1 << 30
) -> tuple[list[TraceRow], Tally]:
    """The rows of the exchanges; prompts are counted by `handler`, or not at all."""

    async def run() -> Tally:
        counter = TokenCounter("http://up", httpx.MockTransport(handler)) if handler else None
        ledger = Ledger(lines, REDACTOR, counter, started_s=10.0)
        for item in exchanges:
            ledger.put(item)
        await ledger.close()
        await ledger.run()
        return ledger.tally

    lines = Lines(room)
    tally = asyncio.run(run())
    return [parse_row(line) for line in lines], tally


def count_words(request: httpx.Request) -> httpx.Response:
    """A token is the length of a word."""
    body = json.loads(request.content)
    said = body.get("prompt") or " ".join(message["content"] for message in body["messages"])
    ids = [len(word) for word in said.split()]
    return httpx.Response(200, json={"count": len(ids), "max_model_len": 9, "tokens": ids})


def test_a_row_holds_what_went_by_and_no_name_or_word() -> None:
    body = chat("secret " * 100, user="ada", max_tokens=9, priority=1)
    (row,), tally = record([exchange(body, usage=100)], count_words)
    assert (row.t, row.prompt_tokens, row.output_tokens, row.max_tokens) == (1.0, 100, 4, 9)
    assert (row.stream, row.priority, row.turn, row.session, row.estimated) == (True, 1, 1, row.id, ())
    assert row.prefix == tuple(REDACTOR.hashes([6] * 100))
    assert row.user == REDACTOR.pseudonym("ada")
    assert row.orig
    assert (row.orig.ttft_s, row.orig.e2e_s) == (1.0, 3.0)
    assert tally == Tally(num_rows=1)


def test_the_server_counts_as_the_client_that_sent_the_prompt() -> None:
    asked: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return count_words(request)

    (row,), _ = record([exchange(chat("a b"), headers={"authorization": "Bearer k"})], handler)
    assert row.prompt_tokens == 2
    assert row.estimated == ("out",)  # events with content, for want of a count
    assert (str(asked[0].url), asked[0].headers["authorization"]) == ("http://up/tokenize", "Bearer k")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(503),
        httpx.Response(200, text="?"),
        httpx.Response(200, json={"tokens": []}),
        httpx.Response(200, json={"count": 2, "tokens": ["a", "b"]}),
        httpx.Response(200, json={"count": 1, "tokens": [1 << 64]}),
    ],
)
def test_a_prompt_that_the_server_does_not_count_has_no_prefix(answer: httpx.Response) -> None:
    rows, tally = record([exchange(chat("a b"), usage=7), exchange(chat("a b"))], lambda request: answer)
    assert [(row.prompt_tokens, row.prefix) for row in rows] == [(7, ()), (7, ())]
    assert [row.estimated for row in rows] == [(), ("in", "out")]
    assert tally.num_estimated == 1


def test_without_a_count_lengths_are_estimated_by_what_was_counted_and_marked() -> None:
    first = exchange(chat("x" * 994))  # with its role and line ends 1,000 characters
    known = exchange(chat("y" * 994), usage=500)
    rows, tally = record([first, known, exchange(chat("z" * 1994))])
    assert [row.prompt_tokens for row in rows] == [250, 500, 750]
    assert [row.estimated for row in rows] == [("in", "out"), (), ("in", "out")]
    assert tally.num_estimated == 2


def test_a_whole_answer_without_a_count_is_estimated_by_its_characters() -> None:
    seen = Exchange(json.dumps(chat("hi")).encode(), {}, 11.0)
    seen.on_head(200, {"content-type": "application/json"})
    choice = {"message": {"content": "x" * 40}, "finish_reason": "stop"}
    seen.on_bytes(json.dumps({"choices": [choice]}).encode(), 12.0)
    seen.on_end(12.0)
    (row,), _ = record([seen])
    assert (row.output_tokens, row.estimated) == (10, ("in", "out"))


def test_without_tokens_shared_prefixes_show_in_characters() -> None:
    shared = "x" * 600
    rows, _ = record([exchange(chat(shared + "one" * 99)), exchange(chat(shared + "two" * 99))])
    one, two = (row.prefix for row in rows)
    assert len(one) == 4
    assert [a == b for a, b in zip(one, two, strict=True)] == [True, True, False, False]


def test_token_ids_are_counted_and_told_in_token_blocks_only() -> None:
    body = {"prompt": list(range(100))}
    (counted,), _ = record([exchange(body)], count_words)
    (uncounted,), _ = record([exchange(body)])
    assert counted.prefix == tuple(REDACTOR.hashes(range(100)))
    assert uncounted.prefix == ()
    assert counted.prompt_tokens == uncounted.prompt_tokens == 100


def test_conversations_are_told_from_prompts_and_named_ones_by_their_names() -> None:
    named = {"x-session-id": "s"}
    rows, _ = record(
        [
            exchange(chat("hi"), 11.0),
            exchange(chat("one"), 12.0, headers=named),
            exchange(chat("hi", "you", "more"), 15.0),
            exchange(chat("two"), 16.0, headers=named),
            exchange(chat("hi", "you", "again"), 30.0, status=429),
            exchange(chat("three"), 31.0, status=429, headers=named),
        ]
    )
    first, opened, second, went_on, refused, named_refused = rows
    assert (second.session, second.turn, second.after, second.think_s) == (first.id, 2, first.id, 1.0)
    assert (went_on.session, went_on.turn, went_on.after) == (opened.session, 2, opened.id)
    assert (refused.session, refused.turn) == (None, None)
    assert (named_refused.session, named_refused.turn) == (opened.session, None)
    assert refused.orig
    assert refused.orig.status == 429


def test_a_short_prompt_without_messages_opens_no_conversation() -> None:
    rows, _ = record([exchange({"prompt": "Once"}, 11.0), exchange({"prompt": "Once upon"}, 21.0)])
    assert [row.turn for row in rows] == [1, 1]
    long = "Once upon a time " * 20
    rows, _ = record([exchange({"prompt": long}, 11.0), exchange({"prompt": long + "there"}, 21.0)])
    assert [row.turn for row in rows] == [1, 2]


def test_what_cannot_be_read_is_counted() -> None:
    rows, tally = record([exchange({"prompt": p}) for p in (["a", "b"], [1 << 64])] + [exchange(chat("hi"))])
    assert len(rows) == 1
    assert tally.num_unreadable == 2


def test_when_the_disk_is_full_recording_ends_and_says_so() -> None:
    rows, tally = record([exchange(chat("hi")) for _ in range(3)], room=1)
    assert len(rows) == tally.num_rows == 1
    assert tally.fault == "the disk is full"


def test_more_than_can_be_written_is_dropped_and_counted() -> None:
    async def run() -> Tally:
        ledger = Ledger(Lines(), REDACTOR, None, started_s=10.0)
        for _ in range(1026):
            ledger.put(exchange({}))
        return ledger.tally

    assert asyncio.run(run()).num_dropped == 2


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 80) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_FIELDS = ("messages", "prompt", "user", "max_tokens", "max_completion_tokens", "priority", "stream", "tools")
_SAID = ("id", "choices", "usage", "timings", "error", "num_tokens", "emit_ns")
_COUNTS = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")


@given(
    st.dictionaries(st.sampled_from(_FIELDS), _json),
    st.dictionaries(st.sampled_from(_SAID), _json),
    st.dictionaries(st.sampled_from(_COUNTS), _json),
    st.booleans(),
)
def test_whatever_is_asked_and_said_a_row_can_be_read_again(
    body: dict[str, Any], said: dict[str, Any], counts: dict[str, Any], streams: bool
) -> None:
    seen = Exchange(json.dumps({"prompt": "hi", **body}).encode(), {}, 11.0)
    seen.on_head(200, {"content-type": "text/event-stream" if streams else "application/json"})
    answer = json.dumps({"usage": counts, **said})
    seen.on_bytes(f"data: {answer}\n\n".encode() if streams else answer.encode(), 12.0)
    seen.on_end(13.0)
    rows, tally = record([seen])
    assert len(rows) + tally.num_unreadable == 1
