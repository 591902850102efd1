"""Whatever traffic comes and whatever the config does meanwhile: everybody gets the tokens they get alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.config import parse_config
from engine.core.executor import ModelInfo
from engine.core.request import FinishReason, Request, SamplingParams
from engine.mlx_backend.executor import MlxExecutor
from engine.mlx_backend.model import load_model
from tests.contracts.driver import random_prompt
from tests.mlx_backend.server import Server
from tests.mlx_backend.tiny_models import ARCHITECTURES, make_tiny_model

SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, min_p=0.01, repetition_penalty=1.1, seed=7)
PARTS = tuple(tuple(random_prompt(n, n)) for n in (1, 2, 31, 32, 33, 70))
TAILS = ((), (3,), (4,), (3, 4))


class AheadExecutor(MlxExecutor):
    """May be driven as a device is that is launched a step ahead."""

    ahead = False

    @property
    def info(self) -> ModelInfo:
        return dataclasses.replace(super().info, runs_ahead=self.ahead)


class Rig:
    """An executor, and what requests get from it alone."""

    def __init__(self, executor: AheadExecutor) -> None:
        self.executor = executor
        self.alone = cache(self._alone)

    def _alone(self, prompt: tuple[int, ...], max_tokens: int, sampling: SamplingParams) -> list[int]:
        server = Server(self.executor, prefix_cache_bytes=0, solo_chunk_tokens=0)
        server.submit(
            Request(id="alone", prompt=prompt, max_tokens=max_tokens, arrived_at_s=0.0, sampling=sampling)
        )
        server.run()
        return server.tokens["alone"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = make_tiny_model(tmp_path_factory.mktemp("model"), request.param)
    executor = AheadExecutor(load_model(directory))
    yield Rig(executor)
    executor.close()


@st.composite
def requests(draw: st.DrawFn, request_id: str) -> Request:
    """Prompts of a few parts, so that they begin alike, are each other's prefixes, or the same."""
    parts = draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3))
    ends = tuple(sum(map(len, parts[: n + 1])) for n in range(len(parts)))
    return Request(
        id=request_id,
        prompt=(*sum(parts, ()), *draw(st.sampled_from(TAILS))),
        max_tokens=draw(st.sampled_from([12, 25, 2, 1])),
        arrived_at_s=0.0,
        priority=draw(st.integers(0, 1)),
        sampling=draw(st.sampled_from([SamplingParams(), SEEDED])),
        boundaries=draw(st.sampled_from([(), ends])),
    )


knobs = st.fixed_dictionaries(
    {
        "prefill_policy": st.sampled_from(["fixed", "whole", "paced"]),
        "prefill_chunk_tokens": st.sampled_from([1, 2, 5, 33, 100]),
        "solo_chunk_tokens": st.sampled_from([1, 7, 40, 200, 0]),
        "decode_steps_per_chunk": st.integers(1, 3),
        "prefill_order": st.sampled_from(["fcfs", "shortest", "aged"]),
        "max_running_requests": st.sampled_from([6, 3, 1]),
        "max_queue_wait_s": st.just(86_400),
        "kv_budget_tokens": st.sampled_from([None, None, 256]),
        "prefix_cache_bytes": st.sampled_from([None, 0, 3_000, 100_000]),
    }
)
visits = st.tuples(st.integers(0, 12), st.one_of(st.none(), st.none(), st.integers(0, 30)))
changes = st.dictionaries(st.integers(1, 30), knobs, max_size=3)


@settings(max_examples=20)
@given(
    st.tuples(*(requests(f"r{n}") for n in range(6))),
    st.lists(visits, min_size=6, max_size=6),
    knobs,
    changes,
    st.booleans(),
)
def test_everybody_gets_the_tokens_they_get_alone(
    rig: Rig,
    offered: tuple[Request, ...],
    when: list[tuple[int, int | None]],
    config: dict[str, object],
    changed: dict[int, dict[str, object]],
    ahead: bool,
) -> None:
    alone = {r.id: rig.alone(r.prompt, r.max_tokens, r.sampling) for r in offered}
    rig.executor.ahead = ahead
    server = Server(rig.executor, **config)
    left = set()
    for step in range(31):
        for request, (arrives, leaves) in zip(offered, when, strict=True):
            if arrives == step:
                server.submit(request)
            if leaves == step and server.scheduler.finish(request.id, FinishReason.ABORTED, 0.0):
                left.add(request.id)
        if step in changed:
            server.scheduler.configure(parse_config(changed[step]), 2)
        server.step()
    server.run()
    for request_id, tokens in server.tokens.items():
        wanted = alone[request_id]
        assert tokens == (wanted[: len(tokens)] if request_id in left else wanted)
    now = server.scheduler.occupancy
    assert (now.num_running, now.num_waiting, now.kv_tokens, now.kv_used_tokens) == (0, 0, 0, 0)
    assert not rig.executor._rows
    rig.executor.ahead = False
    server.forget()
