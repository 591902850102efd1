"""A server that streams a script: events at known moments, cut into packets in every awkward way.

It stands in for a model server when the load client itself is checked. A request picks its script by its
`max_tokens`. What was really sent, and when, is in `ScriptedServer.sent`: an event loop that is late is no
fault of the client.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

_TEMPLATE_TOKENS = 4  # what the pretended chat template adds to a prompt's words
GENERATION = 7


@dataclass(frozen=True, slots=True)
class Write:
    """One send of bytes.

    Attributes:
        after_s: since the write before.
        num_events: content events that these bytes complete.
    """

    after_s: float
    data: bytes
    num_events: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """An answer.

    Attributes:
        is_cut: the connection is closed after the last write, before the stream's end.
        chunked: framed as HTTP chunks; otherwise the body ends with the connection.
        head_pause_s: between the status line and the other headers.
        packet_bytes: every write goes out in packets of so many bytes, wherever that cuts the chunk framing
            or a character; None sends it whole.
        packet_gap_s: between those packets.
    """

    writes: tuple[Write, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    is_cut: bool = False
    chunked: bool = True
    head_pause_s: float = 0.0
    packet_bytes: int | None = None
    packet_gap_s: float = 0.0


def event(
    delta: Mapping[str, Any] | None = None,
    *,
    finish: str | None = None,
    usage_tokens: int | None = None,
    prompt_tokens: int | None = None,
    **extra: Any,
) -> bytes:
    """One chat chunk as an SSE event; no choice at all when `delta` is None."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    body: dict[str, Any] = {"object": "chat.completion.chunk", "choices": choices, **extra}
    if usage_tokens is not None:
        body["usage"] = {"prompt_tokens": prompt_tokens, "completion_tokens": usage_tokens}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def text(words: str = " word", **extra: Any) -> bytes:
    """An event that carries text."""
    return event({"content": words}, **extra)


ROLE_ONLY = event({"role": "assistant", "content": ""})
EMPTY_DELTA = event({})
COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def _packets(script: Script) -> Iterator[Write]:
    """The whole answer as it goes over the wire."""
    if script.status != 200:
        yield Write(0.0, _json_answer(script.status, {"error": {"message": "not now"}}, script.headers))
        return
    framing = {"Transfer-Encoding": "chunked"} if script.chunked else {"Connection": "close"}
    stream = {"Content-Type": "text/event-stream", "x-config-generation": str(GENERATION)}
    status_line, _, others = _head(200, {**stream, **framing, **script.headers}).partition(b"\r\n")
    yield Write(0.0, status_line + b"\r\n")
    yield Write(script.head_pause_s, others)
    for write in script.writes:
        yield from _cut(write, script)
    if script.chunked and not script.is_cut:
        yield from _cut(Write(0.0, b""), script)


def _cut(write: Write, script: Script) -> Iterator[Write]:
    """A write in packets; its events are complete with the packet that holds its last byte."""
    before, after = (b"%x\r\n" % len(write.data), b"\r\n") if script.chunked else (b"", b"")
    framed = before + write.data + after
    size = script.packet_bytes or len(framed)
    last = len(before) + len(write.data) - 1
    for start in range(0, len(framed), size):
        completes = start <= last < start + size
        wait_s = script.packet_gap_s if start else write.after_s
        yield Write(wait_s, framed[start : start + size], write.num_events if completes else 0)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _json_answer(status: int, value: Any, headers: Mapping[str, str] | None = None) -> bytes:
    raw = json.dumps(value).encode()
    fixed = {"Content-Type": "application/json", "Content-Length": str(len(raw))}
    return _head(status, {**fixed, **(headers or {})}) + raw


class ScriptedServer:
    """Serves scripts on loopback from a thread of its own, from `with` to its end.

    Attributes:
        asked: the first message of every chat request.
        received: by `max_tokens`: when each such request had come, perf_counter ns.
        sent: by `max_tokens`: (perf_counter ns just before the write, content events completed) of every
            write of the last such request, its head (two writes) first.
    """

    def __init__(self, scripts: Mapping[int, Script], *, has_tokenizer: bool = True) -> None:
        self._packets = {key: tuple(_packets(script)) for key, script in scripts.items()}
        self._scripts = dict(scripts)
        self.asked: list[str] = []
        self.received: dict[int, list[int]] = {}
        self.sent: dict[int, list[tuple[int, int]]] = {}
        self.num_requests = 0
        self.has_tokenizer = has_tokenizer
        self.url = ""
        self.transports: set[asyncio.Transport] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> str:
        self._listener = await self._loop.create_server(
            lambda: _Connection(self), "127.0.0.1", 0, backlog=512
        )
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def _hang_up(self) -> None:
        self._listener.close()
        for transport in self.transports:
            transport.abort()
        await asyncio.sleep(0)  # what was aborted closes in the loop's next turn

    def answer(self, transport: asyncio.Transport, path: str, body: bytes) -> None:
        """Begins the answer to one request; every path that is no route of ours is one that lists models."""
        if path.endswith("/completions"):
            self._play(transport, json.loads(body))
        elif path == "/tokenize":
            words = sum(len(message["content"].split()) for message in json.loads(body)["messages"])
            status = 200 if self.has_tokenizer else 404
            transport.write(_json_answer(status, {"count": words + _TEMPLATE_TOKENS}))
        else:
            transport.write(_json_answer(200, {"data": [{"id": "scripted", "object": "model"}]}))

    def _play(self, transport: asyncio.Transport, asked: Mapping[str, Any]) -> None:
        received_ns = time.perf_counter_ns()
        key = asked.get("max_tokens") or asked["max_completion_tokens"]
        script = self._scripts[key]
        self.num_requests += 1
        self.asked.append(asked["messages"][0]["content"] if "messages" in asked else "")
        self.received.setdefault(key, []).append(received_ns)
        self.sent[key] = []
        closes = script.status == 200 and (script.is_cut or not script.chunked)
        _Playback(self._loop, transport, self._packets[key], self.sent[key], closes).go_on()


class _Connection(asyncio.Protocol):
    """Requests of one client, one after another."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._pending = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.transports.add(transport)

    def connection_lost(self, _: Exception | None) -> None:
        assert self._transport is not None
        self._server.transports.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._pending += data
        head, blank, body = self._pending.partition(b"\r\n\r\n")
        request_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", 0))
        if not blank or len(body) < length:
            return
        self._pending = body[length:]
        assert self._transport is not None
        self._server.answer(self._transport, request_line.split()[1], body[:length])


class _Playback:
    """Writes an answer's packets, each at its own moment: lateness of one does not move the next."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        packets: Sequence[Write],
        sent: list[tuple[int, int]],
        closes: bool,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._packets = iter(packets)
        self._sent = sent
        self._closes = closes
        self._due_s = loop.time()

    def go_on(self) -> None:
        """Plans the next packet; after the last one the script is over."""
        packet = next(self._packets, None)
        if packet is None:
            if self._closes:
                self._transport.close()
        elif not self._transport.is_closing():
            self._due_s += packet.after_s
            self._loop.call_at(self._due_s, self._write, packet)

    def _write(self, packet: Write) -> None:
        self._sent.append((time.perf_counter_ns(), packet.num_events))
        self._transport.write(packet.data)
        self.go_on()
