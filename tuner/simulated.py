"""Trying a config in virtual time: the server's own scheduler over the fitted cost model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from engine.core.executor import ModelInfo
from engine.core.report import summarise
from engine.core.request import Request
from engine.core.slo import Slo
from engine.sim.simulate import Wait, simulate
from loadtests.schedule import Schedule, ScheduledRequest
from tuner.evaluators import Measurement


@dataclass(frozen=True, slots=True)
class SimulatedEvaluator:
    """Implements `Evaluator`. Takes the very schedule that a live run would send, turns of sessions
    included; refused requests are not sent again, and nobody leaves.

    Attributes:
        schedule_for: the requests of a seed.
    """

    schedule_for: Callable[[int], Schedule]
    costs: CostModel
    model: ModelInfo
    slo: Slo

    def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        schedule = self.schedule_for(seed)
        arrivals = [_arrival(request) for request in schedule.requests]
        measured = {request.id for request in schedule.requests if request.measured}
        run = simulate(
            arrivals, config, self.costs, self.model,
            abort_pause_s=abort_pause_s, watched=measured, waits=_waits(schedule),
        )  # fmt: skip
        records = tuple(record for record in run.records if record.id in measured)
        threshold = schedule.long_prompt_tokens
        summary = summarise(records, self.slo, long_prompt_tokens=threshold)
        return Measurement(
            summary=summary, long_prompt_tokens=threshold, records=records, aborted=run.aborted
        )


def _waits(schedule: Schedule) -> dict[str, Wait]:
    return {
        request.id: Wait(request.after, request.think_s)
        for request in schedule.requests
        if request.after is not None and request.think_s is not None
    }


def _arrival(scheduled: ScheduledRequest) -> Request:
    return Request(
        id=scheduled.id,
        prompt=range(scheduled.prompt_tokens),
        max_tokens=scheduled.max_tokens,
        arrived_at_s=scheduled.at_s,
        priority=scheduled.priority,
    )
