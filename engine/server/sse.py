"""Answers over server-sent events, and watching for a client that leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Protocol

from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.server.stream import Delta, End, Stream

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0


class Departure:
    """While entered, calls `on_gone` as soon as the client has closed its connection."""

    def __init__(self, receive: Receive, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._on_gone = on_gone

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._on_gone()


class Renderer(Protocol):
    """Puts one answer into the bytes of events."""

    def delta(self, delta: Delta) -> bytes: ...

    def end(self, end: End) -> bytes:
        """Everything after the last delta, `[DONE]` included."""


class EventStream(Response):
    """Sends one stream's events as they come.

    A plain `StreamingResponse` never runs its generator's `finally` when the client leaves before the
    first send; here the whole call is guarded, so the row is freed however it ends.

    Args:
        leave: ends the request unless it has ended already.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        stream: Stream,
        renderer: Renderer,
        leave: Callable[[Stream], None],
        headers: dict[str, str],
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self.status_code = 200
        self.background: BackgroundTask | None = None
        self._stream = stream
        self._renderer = renderer
        self._leave = leave
        self._keep_alive_s = keep_alive_s
        self.init_headers({**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with Departure(receive, lambda: self._leave(self._stream)):
                start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(start)
                async for body in self._bodies():
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except OSError:
            pass  # the client has gone; there is nobody to tell
        finally:
            self._leave(self._stream)

    async def _bodies(self) -> AsyncIterator[bytes]:
        """Events as they come, several in one piece when the client is slow to read."""
        keep_alive = _KeepAlive(self._stream, self._keep_alive_s)
        try:
            while True:
                deltas = await self._stream.take()
                if deltas:
                    keep_alive.on_sent()
                    yield b"".join(self._renderer.delta(delta) for delta in deltas)
                elif self._stream.end:
                    break
                elif keep_alive.take_due():
                    yield KEEP_ALIVE
        finally:
            keep_alive.stop()
        yield self._renderer.end(self._stream.end)


class _KeepAlive:
    """Wakes a stream that has been silent for a while. One timer, moved only when it fires."""

    def __init__(self, stream: Stream, interval_s: float) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._sent_at_s = self._loop.time()
        self._due = False
        self._timer = self._loop.call_later(interval_s, self._fire)

    def on_sent(self) -> None:
        self._sent_at_s = self._loop.time()

    def take_due(self) -> bool:
        due, self._due = self._due, False
        return due

    def stop(self) -> None:
        self._timer.cancel()

    def _fire(self) -> None:
        now = self._loop.time()
        if now - self._sent_at_s >= self._interval_s:
            self._sent_at_s, self._due = now, True
            self._stream.wake()
        self._timer = self._loop.call_at(self._sent_at_s + self._interval_s, self._fire)
