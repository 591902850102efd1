"""A server that streams a script: events at known moments, cut into packets in every awkward way.

It stands in for a model server when the load client itself is checked. A request picks its script by its
`max_tokens`. What was really sent, and when, is in `ScriptedServer.sent`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
    """

    writes: tuple[Write, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    is_cut: bool = False
    chunked: bool = True


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
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def text(words: str = " word", **extra: Any) -> bytes:
    """An event that carries text."""
    return event({"content": words}, **extra)


ROLE_ONLY = event({"role": "assistant", "content": ""})
EMPTY_DELTA = event({})
COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


class ScriptedServer:
    """Serves scripts on loopback from threads of its own, from `with` to its end.

    Attributes:
        sent: by `max_tokens`: (perf_counter ns just before the write, content events completed) of
            every write of the last such request.
    """

    def __init__(self, scripts: Mapping[int, Script], *, has_tokenizer: bool = True) -> None:
        self.scripts = dict(scripts)
        self.sent: dict[int, list[tuple[int, int]]] = {}
        self.num_requests = 0
        self.has_tokenizer = has_tokenizer
        handler = type("Handler", (_Handler,), {"scripted": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    scripted: ScriptedServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Silent: the client is what is watched."""

    def do_GET(self) -> None:
        self._answer_json({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":
            words = sum(len(message["content"].split()) for message in body["messages"])
            status = 200 if self.scripted.has_tokenizer else 404
            self._answer_json({"count": words + _TEMPLATE_TOKENS}, status)
        else:
            self.scripted.num_requests += 1
            self._play(body["max_tokens"], self.scripted.scripts[body["max_tokens"]])

    def _answer_json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        raw = json.dumps(value).encode()
        self._start(
            status, {"Content-Type": "application/json", "Content-Length": str(len(raw)), **(headers or {})}
        )
        self.wfile.write(raw)

    def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _play(self, key: int, script: Script) -> None:
        if script.status != 200:
            self._answer_json({"error": {"message": "not now"}}, script.status, script.headers)
            return
        framing = {"Transfer-Encoding": "chunked"} if script.chunked else {"Connection": "close"}
        stream = {"Content-Type": "text/event-stream", "x-config-generation": str(GENERATION)}
        self._start(200, {**stream, **framing, **script.headers})
        sent = self.scripted.sent.setdefault(key, [])
        sent.clear()
        self._write_all(script.writes, script.chunked, sent)
        self.close_connection = script.is_cut or not script.chunked
        if script.chunked and not script.is_cut:
            self.wfile.write(b"0\r\n\r\n")

    def _write_all(self, writes: Sequence[Write], chunked: bool, sent: list[tuple[int, int]]) -> None:
        due_ns = time.perf_counter_ns()
        for write in writes:
            due_ns += int(write.after_s * 1e9)
            time.sleep(max(0.0, (due_ns - time.perf_counter_ns()) / 1e9))
            framed = b"%x\r\n%s\r\n" % (len(write.data), write.data) if chunked else write.data
            sent.append((time.perf_counter_ns(), write.num_events))
            self.wfile.write(framed)
