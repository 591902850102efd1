"""A stop string that the engine hears of when it is ahead already."""

from __future__ import annotations

import json
import threading

import pytest

from tests.engine.fakes import FakeBackend
from tests.patience import DEADLINE_S
from tests.server.live import Live, RawClient, chat


async def hold_up(may_go_on: threading.Event) -> None:
    """Blocks the event loop it runs on."""
    assert may_go_on.wait(DEADLINE_S)


@pytest.mark.parametrize("max_tokens", [500, 10], ids=["goes on", "has ended"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_was_written_after_it_is_counted_nowhere(
    live: Live, backend: FakeBackend, stream: bool, max_tokens: int
) -> None:
    backend.gate.hold()
    options = {"include_usage": True}
    client = RawClient(live, chat(stop="w103", max_tokens=max_tokens, stream=stream, stream_options=options))
    live.until(lambda: live.service.streams)
    (request_id,) = live.service.streams
    may_go_on = threading.Event()
    held_up = live.spawn(lambda: hold_up(may_go_on))
    backend.gate.allow(20)
    live.until(lambda: backend.executor.rows.get(request_id, 10) >= 10)
    may_go_on.set()
    held_up.result(DEADLINE_S)
    client.read_until(b'"completion_tokens": 4' if stream else b'"completion_tokens":4')
    client.leave()
    live.until(live.is_empty)
    assert json.loads(live.http.get("/admin/requests").text)["output_tokens"] == 4
    assert "evenflow_generation_tokens_total 4.0" in live.http.get("/metrics").text
    assert live.outcomes() == ["completed"]
