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
from tests.mlx_backend.tiny_models import make_tiny_model

# (prompt, output, step of arrival, step at which the client leaves)
ARRIVALS = [(40, 60, 0, None), (7, 12, 2, None), (300, 5, 5, None), (250, 8, 6, None), (90, 30, 6, 14)]
ARRIVALS += [(16, 9, step, None) for step in (8, 8, 9, 12, 30)]

CONFIGS = {
    "fixed": {"prefill_chunk_tokens": 32, "solo_chunk_tokens": 64},
    "shortest": {"prefill_chunk_tokens": 48, "prefill_order": "shortest", "decode_steps_per_chunk": 2},
    "few slots": {"prefill_chunk_tokens": 64, "max_running_requests": 3},
    "whole": {"prefill_policy": "whole"},
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> MlxExecutor:
    return MlxExecutor(load_model(make_tiny_model(tmp_path_factory.mktemp("model"), "llama")))


@pytest.mark.parametrize("name", CONFIGS)
def test_live_plans_equal_simulated_plans(name: str, live: MlxExecutor) -> None:
    config = parse_config(CONFIGS[name])
    clock = VirtualClock()
    device = SimExecutor(live.info, UNFITTED, clock, runs_ahead=live.runs_ahead)
    simulated = serve(device, clock, config)
    assert serve(live, time.perf_counter, config) == simulated
    assert sum(plan.num_prefill_tokens for plan in simulated) > 600


def serve(executor: Executor, clock: Callable[[], float], config: SchedulerConfig) -> list[StepPlan]:
    scheduler, pipeline = Scheduler(executor.info, config), Pipeline(executor)
    plans: list[StepPlan] = []
    for step in itertools.count():
        for index, (prompt, output, arrives, leaves) in enumerate(ARRIVALS):
            if arrives == step:
                request = Request(
                    id=f"r{index}",
                    prompt=random_prompt(index, prompt),
                    max_tokens=output,
                    arrived_at_s=float(index),
                )
                scheduler.submit(request, clock())
            if leaves == step:
                scheduler.finish(f"r{index}", FinishReason.ABORTED, clock())
        if scheduler.is_idle:
            return plans
        plans.append(run_step(scheduler, pipeline, clock, lambda record, events: None))
    raise AssertionError("unreachable")
