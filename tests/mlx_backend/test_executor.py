from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from engine.core.plan import PrefillChunk
from engine.mlx_backend import forward
from engine.mlx_backend.executor import MlxExecutor
from engine.mlx_backend.model import kv_bytes_per_token, load_model
from engine.mlx_backend.positions import Selection
from engine.mlx_backend.row_caches import UnbatchableCacheError
from tests.contracts.driver import Driver, make_request, random_prompt, tokens_alone
from tests.mlx_backend.tiny_models import make_tiny_model


@pytest.mark.parametrize(("prompt", "output"), [(300, 20), (300, 900), (700, 400), (3, 600)])
def test_no_more_is_allocated_than_admission_counts(tmp_path: Path, prompt: int, output: int) -> None:
    loaded = load_model(make_tiny_model(tmp_path))
    executor = MlxExecutor(loaded)
    request = make_request("a", random_prompt(1, prompt), max_tokens=output)
    driver = Driver(executor)
    driver.read(request, chunk_tokens=256)
    limit = executor.info.kv_tokens(request) * kv_bytes_per_token(loaded.model)
    for _ in range(output - 1):
        driver.decode("a")
        assert allocated_bytes(executor, "a") <= limit
    assert executor.info.kv_tokens(request) < prompt + output + executor.info.kv_block_tokens


def allocated_bytes(executor: MlxExecutor, request_id: str) -> int:
    caches = executor._rows[request_id].caches
    return sum(array.nbytes for _, array in tree_flatten([[cache.keys, cache.values] for cache in caches]))


def test_a_model_whose_caches_cannot_be_batched_is_served_one_row_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_tiny_model(tmp_path)
    requests = [make_request(i, random_prompt(n, n)) for i, n in (("a", 40), ("b", 97))]
    batching = MlxExecutor(load_model(directory))
    assert batching.info.batches
    alone = {request.id: tokens_alone(batching, request) for request in requests}

    def unbatchable(*_: object) -> None:
        raise UnbatchableCacheError("ChunkedKVCache")

    monkeypatch.setattr(forward, "join_caches", unbatchable)
    executor = MlxExecutor(load_model(directory))
    assert not executor.info.batches
    assert not executor.info.one_pass
    driver = Driver(executor)
    for request in requests:
        driver.read(request, 32)
    driver.decode("a", "b", steps=15)
    assert driver.finish() == alone


def test_the_last_layer_hands_on_only_what_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = MlxExecutor(load_model(make_tiny_model(tmp_path)))
    driver = Driver(executor)
    driver.read(make_request("a", random_prompt(1, 8)), 8)
    handed_on: list[int] = []
    of = Selection.of

    def spy(self: Selection, hidden: mx.array) -> mx.array:
        handed_on.append(hidden.shape[0] * hidden.shape[1])
        return of(self, hidden)

    monkeypatch.setattr(Selection, "of", spy)
    driver.read(make_request("b", random_prompt(2, 40)), 40)
    driver.decode("a", "b")
    executor.start(make_request("c", random_prompt(3, 30)))
    executor.wait(executor.launch(("a", "b"), (PrefillChunk("c", 0, 20, False),)))
    executor.wait(executor.launch(("a", "b"), (PrefillChunk("c", 20, 10, True),)))
    assert handed_on == [1, 2, 2, 3]
