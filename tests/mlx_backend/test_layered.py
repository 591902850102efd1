from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from engine.core.config import parse_config
from engine.core.events import Event, StepRecord, TokenEvent
from engine.core.pipeline import Pipeline
from engine.core.scheduler import Scheduler, run_step
from engine.mlx_backend.executor import MlxExecutor
from engine.mlx_backend.forward import Forward
from engine.mlx_backend.layered import PassUnderWay, leaves_of, share_of
from engine.mlx_backend.model import load_model
from engine.mlx_backend.row import Row
from tests.contracts.driver import make_request, random_prompt, shares_of, tokens_alone
from tests.mlx_backend.tiny_models import make_tiny_model


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("chunk_tokens", [24, 40])
def test_what_the_scheduler_reads_in_layers_is_answered_as_if_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_parts: bool, chunk_tokens: int
) -> None:
    """Launched whole, as on a CPU, and in parts, as on a GPU."""
    if in_parts:
        monkeypatch.setattr("engine.mlx_backend.executor.on_cpu", lambda: False)
    executor = MlxExecutor(load_model(make_tiny_model(tmp_path, num_hidden_layers=8)))
    info = replace(executor.info, runs_ahead=True)  # on a CPU the scheduler would not
    lengths = {"stream": 20, "long": 300, "short": 30, "other": 200}
    requests = {i: make_request(i, random_prompt(n, n)) for i, n in lengths.items()}
    alone = {request.id: tokens_alone(executor, request) for request in requests.values()}
    knobs = {"prefill_chunk_tokens": chunk_tokens, "solo_chunk_tokens": chunk_tokens}
    scheduler, pipeline = Scheduler(info, parse_config(knobs)), Pipeline(executor)
    tokens: dict[str, list[int]] = {request_id: [] for request_id in requests}
    num_shares = 0

    def take(record: StepRecord, events: list[Event]) -> None:
        nonlocal num_shares
        num_shares += sum(chunk.layered is not None for chunk in record.prefill)
        for event in events:
            if isinstance(event, TokenEvent):
                tokens[event.request_id].append(event.token)

    for request in requests.values():
        scheduler.submit(request)
        run_step(scheduler, pipeline, time.perf_counter, take)
    while not scheduler.is_idle:
        run_step(scheduler, pipeline, time.perf_counter, take)
    assert tokens == alone
    assert num_shares > 300 // chunk_tokens


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba2"])
def test_a_share_computes_its_layers_and_no_more(tmp_path: Path, arch: str) -> None:
    loaded = load_model(make_tiny_model(tmp_path, arch, num_hidden_layers=8))
    forward = Forward(loaded.model)
    request = make_request("a", random_prompt(1, 200))
    row = Row(request, forward.new_caches(256), forward.vocab)
    first, *_ = shares_of(request, 200, 8, step_layers=3)
    assert first.layered is not None
    under_way = PassUnderWay(forward, row, first.layered)
    share = share_of(under_way, first)
    mx.eval(share.state)
    assert all(num_operations(leaf) == 0 for cache in row.caches[:3] for leaf in leaves_of(cache))
    done, one, two, three = (num_operations(under_way.mark(n)) for n in (3, 4, 5, 6))
    assert done == 0
    assert 0 < one <= 1.2 * max(two - one, three - two)


def num_operations(array: mx.array) -> int:
    """That are still to be done for it."""
    graph = io.StringIO()
    mx.export_to_dot(graph, array)
    return graph.getvalue().count("rectangle")


def test_layers_without_a_cache_of_their_own_are_not_halted_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_tiny_model(tmp_path, num_hidden_layers=8)
    loaded = load_model(directory)
    assert MlxExecutor(loaded).info.num_layers == 8
    caches = property(lambda _: lambda: [KVCache() for _ in range(8)])
    monkeypatch.setattr(type(loaded.model), "layers", property(lambda model: [*model.model.layers, None]))
    monkeypatch.setattr(type(loaded.model), "make_cache", caches, raising=False)
    assert MlxExecutor(load_model(directory)).info.num_layers == 1
