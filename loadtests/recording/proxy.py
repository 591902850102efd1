"""A proxy that passes everything on as it is, and shows what went by to a ledger."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable

import httpx
from starlette.types import Message, Receive, Scope, Send

from loadtests.recording.exchange import Exchange

# Of one connection, and so not passed on (RFC 9110, 7.6.1). `accept-encoding` too: an answer that is to be
# read on its way must not be compressed.
_OWN_HEADERS = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade expect host content-length accept-encoding".split()
)
_TIMEOUTS = {"connect": 10.0, "read": None, "write": None, "pool": None}
_MOST_ROUTES = 32

Headers = Iterable[tuple[bytes, bytes]]


class Proxy:
    """An ASGI application.

    Attributes:
        num_running: requests that are being passed on.
        unrecorded: POST requests to other routes, by path.

    Args:
        upstream: scheme, host, port and perhaps a path that all paths come after.
        on_over: is given each exchange that is to be recorded, once it is over.
    """

    def __init__(
        self,
        upstream: str,
        transport: httpx.AsyncBaseTransport,
        on_over: Callable[[Exchange], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.num_running = 0
        self.unrecorded: Counter[str] = Counter()
        self._upstream = httpx.URL(upstream)
        self._transport = transport
        self._on_over = on_over
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        self.num_running += 1
        try:
            await self._pass(scope, receive, send)
        finally:
            self.num_running -= 1

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_s = self._clock()
        body = await _read(receive)
        if body is None:
            return
        exchange = Exchange(body, _by_name(scope["headers"]), arrived_s)
        watched = exchange if _is_recorded(scope) else None
        answering = asyncio.create_task(self._answer(self._request(scope, body), watched, send))
        leaving = asyncio.create_task(_departure(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                exchange.on_left(self._clock())
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            if watched is None:
                self._note_unrecorded(scope)
            elif watched.is_offered_traffic:
                watched.on_end(self._clock())
                self._on_over(watched)

    async def _answer(self, request: httpx.Request, watched: Exchange | None, send: Send) -> None:
        """Passes the answer on, each piece as soon as it has come; only then it is looked at."""
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.TransportError as error:
            await _say_unreachable(send, f"{self._upstream}: {error or type(error).__name__}")
            return
        try:
            await send(_head(response))
            if watched:
                watched.on_head(response.status_code, dict(response.headers))
            assert isinstance(response.stream, httpx.AsyncByteStream)
            async for data in response.stream:
                at_s = self._clock()
                await send({"type": "http.response.body", "body": data, "more_body": True})
                if watched:
                    watched.on_bytes(data, at_s)
        except httpx.TransportError:
            return  # cut: the client's connection is cut as well, for its answer is not whole
        finally:
            await response.aclose()
            if watched:
                watched.on_end(self._clock())
        await send({"type": "http.response.body", "body": b""})

    def _request(self, scope: Scope, body: bytes) -> httpx.Request:
        base = self._upstream.raw_path.rstrip(b"/")
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        url = self._upstream.copy_with(raw_path=base + scope["raw_path"] + query)
        headers = [*_passed_on(scope["headers"]), (b"accept-encoding", b"identity")]
        has_body = bool(body) or scope["method"] in ("POST", "PUT", "PATCH")
        return httpx.Request(
            scope["method"],
            url,
            headers=headers,
            content=body if has_body else None,
            extensions={"timeout": _TIMEOUTS},
        )

    def _note_unrecorded(self, scope: Scope) -> None:
        path = scope["path"]
        if scope["method"] == "POST" and (path in self.unrecorded or len(self.unrecorded) < _MOST_ROUTES):
            self.unrecorded[path] += 1


def _is_recorded(scope: Scope) -> bool:
    """Chat and plain completions, under whatever path they are served."""
    return bool(scope["method"] == "POST" and scope["path"].endswith("/completions"))


async def _read(receive: Receive) -> bytes | None:
    """The request's body; None when its client has left before it was whole."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _passed_on(headers: Headers) -> list[tuple[bytes, bytes]]:
    headers = list(headers)
    named = {
        name.strip().lower()
        for key, value in headers
        if key.lower() == b"connection"
        for name in value.split(b",")
    }
    return [(name, value) for name, value in headers if name.lower() not in _OWN_HEADERS | named]


def _head(response: httpx.Response) -> Message:
    headers = _passed_on(response.headers.raw)
    # Told again: the answer to a HEAD request has a length and no body.
    if length := response.headers.get("content-length"):
        headers.append((b"content-length", length.encode()))
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}


def _by_name(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


async def _say_unreachable(send: Send, what: str) -> None:
    error = {
        "message": f"no answer from {what}",
        "type": "server_error",
        "param": None,
        "code": "unreachable",
    }
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 502, "headers": headers})
    await send({"type": "http.response.body", "body": body})
