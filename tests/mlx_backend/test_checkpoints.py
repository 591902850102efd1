from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from engine.core.config import parse_config
from engine.core.plan import Keep, Restore
from engine.core.request import FinishReason, Request
from engine.mlx_backend.checkpoints import Checkpoints
from engine.mlx_backend.executor import MlxExecutor
from engine.mlx_backend.model import load_model
from tests.contracts.driver import random_prompt
from tests.mlx_backend.server import Server
from tests.mlx_backend.tiny_models import ARCHITECTURES, make_tiny_model

SYSTEM = random_prompt(1, 90)
COMPANY = Request(id="company", prompt=random_prompt(50, 20), max_tokens=60, arrived_at_s=0.0)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def executor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MlxExecutor]:
    directory = make_tiny_model(tmp_path_factory.mktemp("model"), request.param)
    made = MlxExecutor(load_model(directory))
    yield made
    made.close()


def chat(name: str, *parts: list[int], output: int = 12) -> Request:
    """Messages, and two tokens of a template behind them."""
    ends = tuple(sum(len(part) for part in parts[: n + 1]) for n in range(len(parts)))
    prompt = [token for part in parts for token in part] + [3, 4]
    return Request(id=name, prompt=prompt, max_tokens=output, arrived_at_s=0.0, boundaries=ends)


FIRST = chat("first", SYSTEM, random_prompt(2, 50))
SECOND = chat("second", SYSTEM, random_prompt(3, 77))
THIRD = chat("third", SYSTEM, random_prompt(2, 50), random_prompt(4, 33), random_prompt(5, 41))


def uncached(executor: MlxExecutor, *requests: Request) -> dict[str, list[int]]:
    server = Server(executor, prefix_cache_bytes=0)
    for request in requests:
        server.submit(request)
        server.run()
    return server.tokens


@pytest.mark.parametrize("chunk_tokens", [7, 64])
def test_hits_write_the_same_tokens_one_after_another(executor: MlxExecutor, chunk_tokens: int) -> None:
    expected = uncached(executor, FIRST, SECOND, THIRD)
    server = Server(executor, solo_chunk_tokens=chunk_tokens, prefill_chunk_tokens=chunk_tokens)
    for request in (FIRST, SECOND, THIRD):
        server.submit(request)
        server.run()
    assert server.tokens == expected
    assert server.cached["first"] == 0
    assert server.cached["second"] >= 64
    assert server.cached["third"] >= 128
    server.forget()


@pytest.mark.parametrize("chunk_tokens", [7, 64])
def test_hits_write_the_same_tokens_in_company(executor: MlxExecutor, chunk_tokens: int) -> None:
    expected = uncached(executor, COMPANY, FIRST, SECOND, THIRD)
    server = Server(executor, solo_chunk_tokens=chunk_tokens, prefill_chunk_tokens=chunk_tokens)
    server.submit(COMPANY)
    server.step(3)
    server.submit(FIRST, SECOND, THIRD)
    server.run()
    assert server.tokens == expected
    assert server.cached["second"] >= 64
    assert server.cached["third"] >= 64
    server.forget()


def test_an_abort_of_the_request_whose_checkpoint_is_used_changes_nothing(executor: MlxExecutor) -> None:
    expected = uncached(executor, SECOND)
    server = Server(executor, solo_chunk_tokens=32, prefill_chunk_tokens=32)
    server.submit(FIRST, SECOND)
    while not server.scheduler.occupancy.prefix_cache.num_hits:
        server.step()
    server.scheduler.finish("first", FinishReason.ABORTED, 0.0)
    server.run()
    assert server.tokens["second"] == expected["second"]
    assert server.cached["second"] >= 64
    server.forget()


def test_an_eviction_while_a_row_reads_on_from_the_checkpoint_changes_nothing(executor: MlxExecutor) -> None:
    expected = uncached(executor, SECOND)
    server = Server(executor, solo_chunk_tokens=32, prefill_chunk_tokens=32)
    server.submit(FIRST)
    server.run()
    server.submit(SECOND)
    server.step()
    server.scheduler.configure(parse_config({"prefix_cache_bytes": 0, "solo_chunk_tokens": 32}), 2)
    server.run()
    assert executor.checkpoint_bytes == 0
    assert server.tokens["second"] == expected["second"]
    assert server.cached["second"] >= 64


def test_a_small_budget_is_kept_and_tokens_stay_the_same(executor: MlxExecutor) -> None:
    requests = [chat(f"r{n}", random_prompt(n % 3, 70), random_prompt(100 + n, 40)) for n in range(8)]
    expected = uncached(executor, *requests)
    sizes = executor.info.checkpoints
    assert sizes is not None
    budget = 2 * sizes.num_bytes(0, 70) + sizes.num_bytes(0, 40)
    server = Server(executor, prefix_cache_bytes=budget, solo_chunk_tokens=64, prefill_chunk_tokens=64)
    for request in requests:
        server.submit(request)
        server.step(2)
    server.run()
    assert server.tokens == expected
    assert server.scheduler.occupancy.prefix_cache.num_evictions > 0
    server.forget()


# -- memory ------------------------------------------------------------------------------------------


def test_a_snapshot_does_not_make_the_live_cache_copy_itself_as_it_grows() -> None:
    cache, checkpoints = grown_cache(100), Checkpoints()
    mx.eval(checkpoints.keep(Keep("a", 1, 0, 80, None), [cache]))
    before = address(cache.keys)
    for _ in range(4):
        grow(cache, 1)
        assert address(cache.keys) == before


def test_a_snapshot_of_one_head_shares_no_memory_with_the_live_cache() -> None:
    cache, checkpoints = grown_cache(100, heads=1), Checkpoints()
    mx.eval(checkpoints.keep(Keep("a", 1, 0, 100, None), [cache]))
    before = address(cache.keys)
    grow(cache, 1)
    assert address(cache.keys) == before
    assert checkpoints.num_bytes == 2 * 100 * 8 * 4


def test_a_restored_cache_has_room_and_grows_in_place() -> None:
    cache, checkpoints = grown_cache(100), Checkpoints()
    mx.eval(checkpoints.keep(Keep("a", 1, 0, 40, None), [cache]))
    mx.eval(checkpoints.keep(Keep("a", 2, 40, 100, 1), [cache]))
    restored = KVCache()
    checkpoints.restore(Restore("b", 2, 90), [restored], 600)
    assert mx.array_equal(restored.keys[..., :90, :], cache.keys[..., :90, :])
    assert restored.keys.shape[2] == 768
    grow(restored, 100)
    before = address(restored.keys)
    grow(restored, 400)
    assert address(restored.keys) == before


def grown_cache(num_tokens: int, heads: int = 2) -> KVCache:
    cache = KVCache()
    cache.step = 512
    grow(cache, num_tokens, heads)
    return cache


def grow(cache: KVCache, num_tokens: int, heads: int | None = None) -> None:
    heads = heads or cache.keys.shape[1]
    rows = mx.random.normal((1, heads, num_tokens, 8))
    mx.eval(cache.update_and_fetch(rows, rows * 2))


def address(array: mx.array) -> int:
    return int(np.array(array, copy=False).__array_interface__["data"][0])
