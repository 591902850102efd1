from __future__ import annotations

from dataclasses import replace

import pytest

from engine.core.config import SchedulerConfig
from engine.core.cost_model import UNFITTED
from engine.core.executor import CheckpointSizes
from engine.core.slo import Slo
from loadtests.traffic.schedule import Schedule, ScheduledRequest
from tests.core.fakes import MODEL
from tuner.evaluation.simulated import SimulatedEvaluator


def request(name: str, **fields: object) -> ScheduledRequest:
    values = {"at_s": 0.0, "prompt_tokens": 200, "max_tokens": 20, "prompt_seed": 1} | fields
    return ScheduledRequest(id=name, **values)  # type: ignore[arg-type]


def test_a_session_is_simulated_turn_by_turn() -> None:
    turns = (request("a"), request("b", after="a", think_s=2.0), request("c", after="b", at_s=5.0))
    schedule = Schedule(
        name="s", seed=1, requests=turns, duration_s=5.0, grace_s=60.0, long_prompt_tokens=100
    )
    evaluator = SimulatedEvaluator(lambda seed: schedule, UNFITTED, MODEL, Slo(0.5))
    first, second, third = evaluator.evaluate(SchedulerConfig(), 1, None).records
    assert second.scheduled_at_s == pytest.approx(first.ended_at_s + 2.0)
    assert third.scheduled_at_s == 5.0  # follows, but does not wait


def test_what_prompts_share_is_read_once() -> None:
    alike = {"prefix": ("x", "y"), "prefix_block_tokens": 64}
    requests = (request("a", **alike), request("b", at_s=5.0, **alike), request("c", at_s=9.0))
    schedule = Schedule(
        name="s", seed=1, requests=requests, duration_s=9.0, grace_s=60.0, long_prompt_tokens=150
    )
    sizes = CheckpointSizes(token_bytes=1, capacity_bytes=1 << 20)
    evaluator = SimulatedEvaluator(
        lambda seed: schedule, UNFITTED, replace(MODEL, checkpoints=sizes), Slo(0.5)
    )
    measured = evaluator.evaluate(SchedulerConfig(), 1, None)
    assert [record.cached_tokens for record in measured.records] == [0, 128, 0]
    assert measured.summary is not None
    assert measured.summary.long_ttft_n == 2
