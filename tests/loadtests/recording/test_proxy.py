"""The proxy as an application: a server and a client that do what a test tells them, and no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from loadtests.recording.exchange import Exchange, Outcome
from loadtests.recording.proxy import Proxy
from loadtests.selftest.scripted_server import DONE, event, text

CHAT = "/v1/chat/completions"
FINISH = event({}, finish="stop") + DONE
EVENTS = [(b"Content-Type", b"text/event-stream"), (b"X-Config-Generation", b"3")]
_CUT, _END = b"cut", b""


class Server(httpx.AsyncBaseTransport, httpx.AsyncByteStream):
    """Answers once it is told how, then streams what it is told, until it is told to end or is left."""

    def __init__(self) -> None:
        self.request: httpx.Request | None = None
        self.was_left = False
        self._heads: asyncio.Queue[httpx.Response] = asyncio.Queue()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def answer(self, status: int = 200, headers: Any = EVENTS) -> None:
        self._heads.put_nowait(httpx.Response(status, headers=headers, stream=self))

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._pieces.put_nowait(piece)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.request = request
        try:
            return await self._heads.get()
        except asyncio.CancelledError:
            self.was_left = True
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) != _END:
            if piece == _CUT:
                raise httpx.ReadError("cut")
            yield piece
        self.was_left = False

    async def aclose(self) -> None:
        self.was_left = self._pieces.empty()


class Client:
    """One request; what comes back is in `heard`."""

    def __init__(self, path: str = CHAT, method: str = "POST", body: bytes = b"{}", **scope: Any) -> None:
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
            **scope,
        }
        for start in range(0, len(body), 5):
            self._said.put_nowait(
                {"type": "http.request", "body": body[start : start + 5], "more_body": True}
            )
        self._said.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    def leave(self) -> None:
        self._said.put_nowait({"type": "http.disconnect"})

    def send(self, proxy: Proxy) -> asyncio.Task[None]:
        return asyncio.create_task(proxy(self._scope, self._said.get, self.heard.put))

    async def hear(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.heard.get(), 60)


class Stage:
    """A proxy between the two, on a clock that a test sets."""

    def __init__(self, upstream: str = "http://up:9") -> None:
        self.now_s = 1.0
        self.server = Server()
        self.over: list[Exchange] = []
        self.proxy = Proxy(upstream, self.server, self.over.append, lambda: self.now_s)


def play(work: Callable[[Stage], Awaitable[None]], upstream: str = "http://up:9") -> Stage:
    async def run() -> Stage:
        stage = Stage(upstream)
        await work(stage)
        return stage

    return asyncio.run(run())


def test_every_piece_is_passed_on_before_the_next_one_comes() -> None:
    pieces = [text()[:10], text()[10:] + text(), FINISH]

    async def work(stage: Stage) -> None:
        client = Client(body=b'{"stream": true}')
        passing = client.send(stage.proxy)
        stage.server.answer()
        assert (await client.hear())["type"] == "http.response.start"
        for stage.now_s, piece in zip((2.0, 2.5, 4.5), pieces, strict=True):
            stage.server.say(piece)
            assert await client.hear() == {"type": "http.response.body", "body": piece, "more_body": True}
            await asyncio.sleep(0)
        stage.server.say(_END)
        assert not (await client.hear()).get("more_body")
        await passing

    (exchange,) = play(work).over
    assert (exchange.body, exchange.outcome, exchange.generation) == (
        b'{"stream": true}',
        Outcome.COMPLETED,
        3,
    )
    assert exchange.state.counted_tokens == 2
    assert (exchange.first_content_s, exchange.original().e2e_s) == (2.5, 3.5)


def test_a_client_that_leaves_closes_the_server_s_answer() -> None:
    async def work(stage: Stage) -> None:
        client = Client()
        passing = client.send(stage.proxy)
        stage.server.answer()
        stage.server.say(text())
        await client.hear()
        await client.hear()
        stage.now_s = 3.0
        client.leave()
        await passing

    stage = play(work)
    assert stage.server.was_left
    assert [(e.outcome, e.cancel_s) for e in stage.over] == [(Outcome.ABORTED, 2.0)]
    assert stage.proxy.num_running == 0


def test_a_client_that_leaves_before_the_answer_takes_its_request_back() -> None:
    async def work(stage: Stage) -> None:
        client = Client()
        passing = client.send(stage.proxy)
        while stage.server.request is None:
            await asyncio.sleep(0)
        client.leave()
        await passing

    stage = play(work)
    assert stage.server.was_left
    assert [e.outcome for e in stage.over] == [Outcome.ABORTED]


def test_a_client_that_leaves_before_its_request_was_whole_asked_for_nothing() -> None:
    async def work(stage: Stage) -> None:
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
        said = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(said)

        await stage.proxy(scope, receive, Client().heard.put)

    stage = play(work)
    assert stage.server.request is None
    assert stage.over == []


def test_a_stream_that_is_cut_is_cut_for_the_client_too() -> None:
    async def work(stage: Stage) -> None:
        client = Client()
        passing = client.send(stage.proxy)
        stage.server.answer()
        stage.server.say(text(), _CUT)
        await passing
        heard = [client.heard.get_nowait() for _ in range(client.heard.qsize())]
        assert [message.get("more_body") for message in heard] == [None, True]  # and no end

    assert [e.outcome for e in play(work).over] == [Outcome.FAILED]


def test_a_server_that_is_not_there_is_an_error_and_no_row() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    async def work(stage: Stage) -> None:
        client = Client()
        proxy = Proxy("http://up:9", httpx.MockTransport(refuse), stage.over.append)
        await client.send(proxy)
        assert (await client.hear())["status"] == 502
        error = json.loads((await client.hear())["body"])["error"]
        assert error["code"] == "unreachable"
        assert "http://up:9" in error["message"]

    assert play(work).over == []


def test_other_routes_and_errors_are_passed_on_as_they_are() -> None:
    async def work(stage: Stage) -> None:
        client = Client(
            "/a%20b",
            "GET",
            b"",
            query_string=b"x=1&y=%2F",
            headers=[(b"host", b"proxy:1"), (b"x-own", b"\xe4"), (b"connection", b"x-hop"), (b"x-hop", b"1")],
        )
        passing = client.send(stage.proxy)
        stage.server.answer(
            404, [(b"X-Reason", b"none"), (b"Connection", b"close"), (b"Content-Length", b"4")]
        )
        stage.server.say(b"nope", _END)
        await passing
        head, body, end = [client.heard.get_nowait() for _ in range(3)]
        assert head["status"] == 404
        assert head["headers"] == [(b"X-Reason", b"none"), (b"content-length", b"4")]
        assert (body["body"], end["body"]) == (b"nope", b"")

    stage = play(work, "http://up:9/llm/")
    request = stage.server.request
    assert request
    assert (request.method, str(request.url)) == ("GET", "http://up:9/llm/a%20b?x=1&y=%2F")
    assert request.headers["host"] == "up:9"
    assert request.headers["accept-encoding"] == "identity"
    assert (b"x-own", b"\xe4") in request.headers.raw
    assert not {"x-hop", "connection", "content-length", "transfer-encoding"} & set(request.headers)
    assert stage.over == []
    assert stage.proxy.unrecorded == {}


def test_requests_that_are_no_rows_are_counted_by_their_route() -> None:
    async def work(stage: Stage) -> None:
        for path in ("/v1/embeddings", "/v1/embeddings", "/v1/responses"):
            client = Client(path)
            passing = client.send(stage.proxy)
            stage.server.answer(headers=[])
            stage.server.say(_END)
            await passing

    stage = play(work)
    assert stage.proxy.unrecorded == {"/v1/embeddings": 2, "/v1/responses": 1}
    assert stage.over == []


def test_a_client_s_own_fault_is_no_row() -> None:
    async def work(stage: Stage) -> None:
        client = Client()
        passing = client.send(stage.proxy)
        stage.server.answer(400, [])
        stage.server.say(b"{}", _END)
        await passing

    assert play(work).over == []
