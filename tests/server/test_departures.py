"""A client that leaves frees its row within a step, wherever its request was."""

from __future__ import annotations

import random
import socket

import pytest

from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from engine.sim_backend import SIM_MODEL, SimBackend
from tests.engine.fakes import FakeBackend
from tests.patience import DEADLINE_S
from tests.server.live import Live, RawClient, chat

QUICK = CostModel(0.0005, 1e-6, 0.0, 0.001, 0.0, 0.0)


def test_while_streaming(live: Live, backend: FakeBackend) -> None:
    backend.gate.hold()
    backend.gate.allow(3)
    client = RawClient(live, chat(stream=True, max_tokens=900))
    client.read_until(b"w100")
    client.leave()
    live.until(lambda: live.outcomes() == ["aborted"])
    assert not live.service.streams
    backend.gate.allow(3)
    live.until(lambda: not backend.executor.rows)


def test_before_the_first_token(live: Live, backend: FakeBackend) -> None:
    backend.gate.hold()
    client = RawClient(live, chat(stream=True))
    live.until(lambda: live.service.streams)
    client.leave()
    live.until(lambda: live.outcomes() == ["aborted"])
    backend.gate.open()
    live.until(lambda: not backend.executor.rows)


def test_at_once_after_sending(live: Live, backend: FakeBackend) -> None:
    backend.gate.hold()
    for stream in (True, False):
        RawClient(live, chat(stream=stream)).leave()
    RawClient(live, chat(stream=True)).leave()
    live.until(lambda: live.outcomes() == ["aborted"] * live.service.ended.last_seq and live.is_empty())
    backend.gate.open()
    assert live.http.post("/v1/chat/completions", json=chat()).status_code == 200


def test_before_its_body_was_whole(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n"
    with socket.create_connection(("127.0.0.1", live.port), DEADLINE_S) as half:
        half.sendall(head + b'{"prompt')
        live.until(lambda: live.num_connections)
    live.until(lambda: not live.num_connections)
    assert not caplog.records
    assert live.http.post("/v1/chat/completions", json=chat()).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_while_queued(backend: FakeBackend, stream: bool) -> None:
    with Live(backend, SchedulerConfig(max_running_requests=1)) as live:
        backend.gate.hold()
        first = RawClient(live, chat(stream=True, max_tokens=900))
        live.until(lambda: live.service.engine.occupancy.num_running == 1)
        second = RawClient(live, chat(stream=stream))
        live.until(lambda: live.service.engine.occupancy.num_waiting == 1)
        second.leave()
        live.until(lambda: live.service.engine.occupancy.num_waiting == 0)
        assert live.outcomes() == ["aborted"]
        assert len(backend.executor.rows) == 1
        first.leave()
        backend.gate.open()
        live.until(live.is_empty)


def test_while_waiting_for_a_whole_answer(live: Live, backend: FakeBackend) -> None:
    backend.gate.hold()
    client = RawClient(live, chat(max_tokens=900))
    live.until(lambda: live.service.engine.occupancy.num_running == 1)
    client.leave()
    live.until(lambda: live.outcomes() == ["aborted"])
    backend.gate.open()
    live.until(lambda: not backend.executor.rows)


def test_two_hundred_at_random_moments_leave_nothing_behind() -> None:
    chance = random.Random(11)
    config = SchedulerConfig(max_running_requests=8, prefill_chunk_tokens=16, max_waiting_requests=1000)
    with Live(SimBackend(SIM_MODEL, QUICK), config) as live:
        clients: list[RawClient] = []
        for _ in range(200):
            prompt = "word " * chance.randint(1, 60)
            body = chat(prompt, stream=chance.random() < 0.7, max_tokens=chance.randint(1, 400))
            clients.append(RawClient(live, body))
            while clients and chance.random() < 0.55:
                clients.pop(chance.randrange(len(clients))).leave()
        for client in clients:
            client.leave()
        live.until(live.is_empty)
        # Nobody who came in is counted twice or lost.
        live.until(lambda: live.http.get("/admin/stats").json()["running"] == 0)
        assert set(live.outcomes()) <= {"aborted", "completed"}
        ids = [ended.id for _, ended in live.service.ended.after(0)]
        assert len(ids) == len(set(ids))
        assert live.http.post("/v1/chat/completions", json=chat()).status_code == 200
