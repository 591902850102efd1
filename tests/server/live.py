"""The real app over the real engine loop, on a real socket, with a fake device behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import uvicorn

from engine.config_store import ConfigStore
from engine.core.config import SchedulerConfig
from engine.cost_store import CostStore
from engine.serve import bind
from engine.server.app import AppOptions, create_app
from engine.server.service import Backend, Service, Witness
from tests.patience import DEADLINE_S, until

T = TypeVar("T")


class QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Live:
    """A running server; `http` is a client of it."""

    def __init__(
        self,
        backend: Backend,
        config: SchedulerConfig | None = None,
        options: AppOptions | None = None,
        state: Path | None = None,
        witnesses: Sequence[Witness] = (),
        learned: CostStore | None = None,
        wait_ready: bool = True,
    ) -> None:
        self.service = Service(backend, ConfigStore(config, state), witnesses=witnesses, learned=learned)
        self._listener = bind("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        app = create_app(self.service, options)
        self._server = QuietServer(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        self._wait_ready = wait_ready
        self._running = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Live:
        self._thread.start()
        assert self._running.wait(DEADLINE_S)
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S)
        self.until(lambda: self._server.started)
        if self._wait_ready:
            self.until(lambda: self.service.is_ready)
            self.until(lambda: self.service.model is not None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def until(self, condition: Callable[[], object]) -> None:
        """Polls until the condition holds."""
        until(condition, every_s=0.005)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs a coroutine on the server's event loop to its end."""
        return self.spawn(work).result(DEADLINE_S)

    def spawn(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Starts a coroutine on the server's event loop."""

        async def wrapped() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(wrapped(), self._loop)

    def is_empty(self) -> bool:
        now = self.service.engine.occupancy
        return not (self.service.streams or now.num_running or now.num_waiting)

    @property
    def num_connections(self) -> int:
        return len(self._server.server_state.tasks)

    def outcomes(self) -> list[str]:
        return [ended.outcome for _, ended in self.service.ended.after(0)]

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running.set()
        await self._server.serve(sockets=[self._listener])


def chat(content: str = "hello there", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}


def events(text: str) -> list[dict[str, Any]]:
    """The JSON events of an SSE body, without comments; asserts that it ends as it should."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def text_of(parts: Sequence[dict[str, Any]]) -> str:
    choices = [choice for part in parts for choice in part.get("choices", ())]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


class RawClient:
    """One request over a bare socket, so that a test can leave whenever it likes."""

    def __init__(self, live: Live, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(payload)}\r\n\r\n"
        self._socket = socket.create_connection(("127.0.0.1", live.port), DEADLINE_S)
        self._socket.sendall(head.encode() + payload)
        self._seen = b""

    def read_until(self, mark: bytes) -> None:
        while mark not in self._seen:
            part = self._socket.recv(65536)
            assert part, f"closed before {mark!r}"
            self._seen += part

    @property
    def head(self) -> bytes:
        """Status line and headers, once read."""
        return self._seen.partition(b"\r\n\r\n")[0]

    def leave(self) -> None:
        self._socket.close()
