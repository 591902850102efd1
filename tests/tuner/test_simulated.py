from __future__ import annotations

import pytest

from engine.core.config import SchedulerConfig
from engine.core.cost_model import UNFITTED
from engine.core.slo import Slo
from loadtests.schedule import Schedule, ScheduledRequest
from tests.core.fakes import MODEL
from tuner.simulated import SimulatedEvaluator


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
