"""One policy, one set of arrivals: the server's plans and the simulator's are the same, step by step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from engine.core.config import SchedulerConfig, parse_config
from engine.core.cost_model import UNFITTED
from engine.core.executor import Executor
from engine.core.pipeline import Pipeline
from engine.core.plan import StepPlan
from engine.core.request import FinishReason, Request
from engine.core.scheduler import Scheduler, run_step
from engine.mlx_backend.executor import MlxExecutor
from engine.mlx_backend.model import load_model
from engine.sim.executor import SimExecutor, VirtualClock
from tests.contracts.driver import random_prompt
from tests.core.fakes import prefill_tokens
from tests.mlx_backend.tiny_models import make_tiny_model

# A request, its step of arrival, and the step at which its client leaves.
Arrival = tuple[Request, int, int | None]
LAST_ARRIVAL = 30

# (prompt, output, step of arrival, step at which the client leaves)
ARRIVALS = [(40, 60, 0, None), (7, 12, 2, None), (300, 5, 5, None), (250, 8, 6, None), (90, 30, 6, 14)]
ARRIVALS += [(16, 9, step, None) for step in (8, 8, 9, 12, 30)]

# Prompts of (length, seed) parts: a system prompt shared by most, a conversation that goes on, an abort of
# the one whose prefix others wait for, and too few bytes for all of it.
SYSTEM, OTHER = (120, 100), (90, 200)
CHATS = [
    ([SYSTEM, (40, 1)], 9, 0, None),
    ([SYSTEM, (70, 2)], 9, 0, 7),
    ([OTHER, (30, 3)], 12, 2, 3),
    ([OTHER, (50, 4)], 12, 2, None),
    ([SYSTEM, (40, 1), (60, 5)], 6, 15, None),
    ([SYSTEM, (40, 1), (60, 5), (33, 6)], 6, 25, None),
    ([OTHER, (50, 4)], 12, 25, None),
]

CONFIGS = {
    "fixed": {"prefill_chunk_tokens": 32, "solo_chunk_tokens": 64},
    "shortest": {"prefill_chunk_tokens": 48, "prefill_order": "shortest", "decode_steps_per_chunk": 2},
    "few slots": {"prefill_chunk_tokens": 64, "max_running_requests": 3},
    "whole": {"prefill_policy": "whole"},
}


CACHES = {
    "roomy": {"prefill_chunk_tokens": 32, "solo_chunk_tokens": 64},
    "scarce": {"prefill_chunk_tokens": 32, "solo_chunk_tokens": 64, "prefix_cache_bytes": 200_000},
    "shortest": {"prefill_chunk_tokens": 48, "solo_chunk_tokens": 48, "prefill_order": "shortest"},
}


@pytest.fixture(scope="module", params=[("llama", False), ("llama", True), ("gemma3", True)], ids=str)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MlxExecutor:
    """By tokens, as on a CPU, and by layers, as on a GPU."""
    arch, in_layers = request.param
    directory = make_tiny_model(tmp_path_factory.mktemp("model"), arch, num_hidden_layers=8)
    with pytest.MonkeyPatch.context() as patch:
        if in_layers:
            patch.setattr("engine.mlx_backend.executor.on_cpu", lambda: False)
        return MlxExecutor(load_model(directory))


@pytest.mark.parametrize("name", CONFIGS)
def test_live_plans_equal_simulated_plans(name: str, live: MlxExecutor) -> None:
    arrivals = [(plain_request(index, row[0], row[1]), *row[2:]) for index, row in enumerate(ARRIVALS)]
    plans = both(live, parse_config(CONFIGS[name]), arrivals)
    assert sum(prefill_tokens(plan) for plan in plans) > 600


@pytest.mark.parametrize("name", CACHES)
def test_live_plans_equal_simulated_plans_with_shared_prefixes(name: str, live: MlxExecutor) -> None:
    arrivals = [(chat(index, row[0], row[1]), *row[2:]) for index, row in enumerate(CHATS)]
    plans = both(live, parse_config(CACHES[name]), arrivals)
    assert sum(len(plan.restore) for plan in plans) >= 2
    assert bool(sum(len(plan.drop) for plan in plans)) == (name == "scarce")


def both(live: MlxExecutor, config: SchedulerConfig, arrivals: list[Arrival]) -> list[StepPlan]:
    """Serves the arrivals on both; the plans they agree on."""
    clock = VirtualClock()
    device = SimExecutor(live.info, UNFITTED, clock)
    simulated = serve(device, clock, config, arrivals)
    plans = serve(live, time.perf_counter, config, arrivals)
    held = {keep.checkpoint for plan in plans for keep in plan.keep}
    for checkpoint in sorted(held - {gone for plan in plans for gone in plan.drop}, reverse=True):
        live.drop(checkpoint)
    assert plans == simulated
    return plans


def plain_request(index: int, prompt: int, output: int) -> Request:
    return Request(
        id=f"r{index}", prompt=random_prompt(index, prompt), max_tokens=output, arrived_at_s=float(index)
    )


def chat(index: int, parts: list[tuple[int, int]], output: int) -> Request:
    messages = [random_prompt(seed, length) for length, seed in parts]
    ends = tuple(itertools.accumulate(len(message) for message in messages))
    prompt = list(itertools.chain(*messages, [1, 2]))
    return Request(
        id=f"r{index}", prompt=prompt, max_tokens=output, arrived_at_s=float(index), boundaries=ends
    )


def serve(
    executor: Executor, clock: Callable[[], float], config: SchedulerConfig, arrivals: list[Arrival]
) -> list[StepPlan]:
    scheduler, pipeline = Scheduler(executor.info, config), Pipeline(executor)
    plans: list[StepPlan] = []
    for step in itertools.count():
        for request, arrives, leaves in arrivals:
            if arrives == step:
                scheduler.submit(request)
            if leaves == step:
                scheduler.finish(request.id, FinishReason.ABORTED, clock())
        if scheduler.is_idle and step > LAST_ARRIVAL:
            return plans
        plans.append(run_step(scheduler, pipeline, clock, lambda record, events: None))
    raise AssertionError("unreachable")
