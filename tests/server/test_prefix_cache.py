from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.core.executor import CheckpointSizes
from tests.engine.fakes import MODEL, FakeBackend
from tests.server.live import Live, chat, events

SYSTEM = {"role": "system", "content": " ".join(f"w{n}" for n in range(200))}


@pytest.fixture
def live() -> Iterator[Live]:
    sizes = CheckpointSizes(token_bytes=100, capacity_bytes=1 << 20)
    with Live(FakeBackend(replace(MODEL, checkpoints=sizes))) as running:
        yield running


def asking(question: str, **fields: object) -> dict[str, object]:
    return chat(**fields) | {"messages": [SYSTEM, {"role": "user", "content": question}]}  # type: ignore[arg-type]


def test_usage_and_timings_say_what_came_from_the_cache(live: Live) -> None:
    live.http.post("/v1/chat/completions", json=asking("what is this"))
    options = {"include_usage": True, "include_timings": True}
    body = asking("something else altogether", stream=True, stream_options=options)
    last = events(live.http.post("/v1/chat/completions", json=body).text)[-1]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 201
    assert last["timings"]["cached_tokens"] == 201


def test_plain_prompts_share_whole_blocks(live: Live) -> None:
    for end, cached in ((1, 0), (2, 96), (3, 96)):
        prompt = [*range(100), *[end] * 50]
        answer = live.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2}).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_metrics_and_statistics_show_the_cache(live: Live) -> None:
    for question in ("one", "two"):
        live.http.post("/v1/chat/completions", json=asking(question))
    use = live.http.get("/admin/stats").json()["prefix_cache"]
    assert (use["num_hits"], use["hit_tokens"], use["num_bytes"]) == (1, 201, 20_100)
    lines = live.http.get("/metrics").text.splitlines()
    for line in (
        "evenflow_prefix_cache_queries_total 408.0",
        "evenflow_prefix_cache_hits_total 201.0",
        "evenflow_prefix_cache_hit_requests_total 1.0",
        "evenflow_prefix_cache_evictions_total 0.0",
        "evenflow_prefix_cache_bytes 20100.0",
        "evenflow_cached_prompt_tokens_total 201.0",
    ):
        assert line in lines


def test_the_cache_is_turned_off_live_and_freed(live: Live) -> None:
    live.http.post("/v1/chat/completions", json=asking("one"))
    changed = live.http.patch("/admin/config", json={"prefix_cache_bytes": 0}, headers={"If-Match": "*"})
    assert changed.status_code == 200
    answer = live.http.post("/v1/chat/completions", json=asking("two")).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert live.http.get("/admin/stats").json()["prefix_cache"]["num_bytes"] == 0
