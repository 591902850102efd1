"""Loading, keep-alives, crashes and the end, as clients see them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx
import pytest

from engine.server.app import AppOptions
from tests.engine.fakes import FakeBackend
from tests.patience import DEADLINE_S
from tests.server.live import Live, RawClient, chat


def test_not_ready_while_the_model_loads() -> None:
    may_load = threading.Event()

    def load() -> None:
        assert may_load.wait(DEADLINE_S)

    backend = FakeBackend(loading=load)
    with Live(backend, wait_ready=False) as live:
        assert live.http.get("/health").status_code == 200
        assert live.http.get("/ready").status_code == live.http.head("/ready").status_code == 503
        assert live.http.head("/health").status_code == 200
        refused = live.http.post("/v1/chat/completions", json=chat())
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_loading"
        assert live.http.get("/v1/models").json()["data"] == []
        may_load.set()
        live.until(lambda: live.http.get("/ready").status_code == 200)


def test_a_silent_stream_gets_comments_that_are_no_content(backend: FakeBackend) -> None:
    with Live(backend, options=AppOptions(keep_alive_s=0.01)) as live:
        backend.gate.hold()
        client = RawClient(live, chat(stream=True, max_tokens=2))
        client.read_until(b": keep-alive\n\n")
        backend.gate.open()
        client.read_until(b"[DONE]")
        client.leave()


def test_a_crash_ends_a_stream_with_an_error_event_and_the_server_recovers(
    live: Live, backend: FakeBackend
) -> None:
    backend.gate.hold()
    backend.gate.allow(2)
    streaming = RawClient(live, chat(stream=True, max_tokens=900))
    streaming.read_until(b"w100")
    answers: list[httpx.Response] = []
    whole = threading.Thread(
        target=lambda: answers.append(live.http.post("/v1/chat/completions", json=chat()))
    )
    whole.start()
    live.until(lambda: len(live.service.streams) == 2)
    backend.executor.broken = RuntimeError("the GPU fell off")
    backend.gate.open()
    streaming.read_until(b'"code": "engine_failed"')
    streaming.read_until(b"[DONE]")
    whole.join(DEADLINE_S)
    assert answers[0].status_code == 500
    assert "the GPU fell off" in answers[0].json()["error"]["message"]
    live.until(lambda: live.service.is_ready)
    assert live.http.post("/v1/chat/completions", json=chat()).status_code == 200
    assert "evenflow_engine_recoveries_total 1.0" in live.http.get("/metrics").text
    assert live.outcomes() == ["failed", "failed", "completed"]


def test_an_engine_that_is_dead_says_so(live: Live, backend: FakeBackend) -> None:
    for _ in range(3):
        live.until(lambda: live.service.is_ready)
        backend.executor.broken = RuntimeError("broken for good")
        assert live.http.post("/v1/chat/completions", json=chat()).status_code == 500
        live.until(lambda: not backend.executor.closed_by or len(backend.loaded) == 3)
    live.until(lambda: not live.service.is_alive)
    assert live.http.get("/health").status_code == 503
    assert live.http.post("/v1/chat/completions", json=chat()).json()["error"]["code"] == "engine_dead"


def test_draining_refuses_newcomers_and_lets_streams_end(live: Live, backend: FakeBackend) -> None:
    backend.gate.hold()
    client = RawClient(live, chat(stream=True))
    live.until(lambda: live.service.streams)
    draining = live.spawn(lambda: live.service.drain(DEADLINE_S))
    live.until(lambda: not live.service.is_ready)
    assert live.http.get("/ready").status_code == 503
    refused = live.http.post("/v1/chat/completions", json=chat())
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_stopping"
    backend.gate.open()
    client.read_until(b'"finish_reason": "length"')
    draining.result(DEADLINE_S)
    client.leave()


def outlast_the_grace_period(live: Live, backend: FakeBackend) -> None:
    live.run(lambda: live.service.drain(0.0))


def meet_a_crash_while_draining(live: Live, backend: FakeBackend) -> None:
    live.service.engine.drain()
    backend.executor.broken = RuntimeError("the GPU fell off")
    backend.gate.open()


def be_inside_when_the_engine_closes(live: Live, backend: FakeBackend) -> None:
    live.service.engine.close()
    backend.gate.open()


WAYS_TO_STOP = [outlast_the_grace_period, meet_a_crash_while_draining, be_inside_when_the_engine_closes]


@pytest.mark.parametrize("stop", WAYS_TO_STOP)
def test_a_request_that_the_stop_ends_is_told_so_with_503(
    live: Live, backend: FakeBackend, stop: Callable[[Live, FakeBackend], None]
) -> None:
    backend.gate.hold()
    streaming = RawClient(live, chat(stream=True, max_tokens=900))
    whole = RawClient(live, chat(max_tokens=900))
    live.until(lambda: len(live.service.streams) == 2)
    stop(live, backend)
    streaming.read_until(b'"code": "engine_stopping"')
    streaming.read_until(b"[DONE]")
    whole.read_until(b"engine_stopping")
    assert whole.head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 5" in whole.head.lower()
    assert live.outcomes() == ["failed", "failed"]
    late = live.http.post("/v1/chat/completions", json=chat())
    assert (late.status_code, late.json()["error"]["code"]) == (503, "engine_stopping")
    assert "recoveries_total 0.0" in live.http.get("/metrics").text
