"""Bodies so large that reading them would hold up every stream."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from starlette.requests import Request

from engine.server.wire import GenerationRequest, read_body
from engine.sim_backend import WordTokenizer
from tests.engine.fakes import FakeBackend
from tests.server.live import Live


def test_a_long_role_counts_as_text(live: Live) -> None:
    messages = [{"role": "x" * 100_000, "content": "hello"}]
    response = live.http.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


class WatchedTokenizer(WordTokenizer):
    """Notes the threads that encode conversations."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        self.threads.append(threading.current_thread())
        return super().encode_chat(messages)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "hello " * 1000}],
        [{"role": "user " * 1000, "content": "hello"}],
        [{"role": "user", "content": ""}] * 600,
    ],
    ids=["text", "role", "many"],
)
def test_a_long_conversation_is_encoded_beside_the_event_loop(messages: list[dict[str, str]]) -> None:
    tokenizer = WatchedTokenizer()
    with Live(FakeBackend(tokenizer=tokenizer)) as live:
        live.http.post("/tokenize", json={"messages": messages})
        live.http.post("/tokenize", json={"messages": [{"role": "user", "content": "hello"}]})
    assert tokenizer.threads[0] is not tokenizer.threads[1]


class WatchedBody(GenerationRequest):
    thread: Any = None

    def model_post_init(self, context: object) -> None:
        self.thread = threading.current_thread()


@pytest.mark.parametrize(("size", "inline"), [(10, True), (100_000, False)])
def test_a_long_body_is_parsed_beside_the_event_loop(size: int, inline: bool) -> None:
    scope = {"type": "http", "headers": []}
    message = {"type": "http.request", "body": json.dumps({"user": "x" * size}).encode()}

    async def receive() -> dict[str, Any]:
        return message

    body = asyncio.run(read_body(Request(scope, receive), WatchedBody, 1000))
    assert (body.thread is threading.current_thread()) == inline


def test_how_long_a_body_may_be_depends_on_the_context(live: Live) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    assert live.http.post("/v1/completions", content=body.ljust(1 << 20)).status_code == 200
    assert live.http.post("/v1/completions", content=body.ljust((1 << 20) + 1)).status_code == 413
