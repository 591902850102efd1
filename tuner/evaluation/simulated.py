"""Trying a config in virtual time: the server's own scheduler over the fitted cost model."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from engine.core.executor import ModelInfo
from engine.core.report import summarise
from engine.core.request import Request
from engine.core.slo import Slo
from engine.sim.simulate import Wait, simulate
from loadtests.traffic.schedule import Schedule, ScheduledRequest
from tuner.evaluation.evaluators import Measurement
from tuner.evaluation.surroundings import Surroundings

_MOST_BLOCK_TOKENS = 1 << 24  # ids that are kept apart for each block


@dataclass(frozen=True, slots=True)
class SimulatedEvaluator:
    """Implements `Evaluator`. Takes the very schedule that a live run would send: turns of sessions wait for
    one another, prompts share what they share, and who is refused comes back as often. Nobody leaves.

    Attributes:
        schedule_for: the requests of a seed.
        surroundings: of the device.
    """

    schedule_for: Callable[[int], Schedule]
    costs: CostModel
    model: ModelInfo
    slo: Slo
    surroundings: Surroundings = Surroundings()

    def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        schedule = self.schedule_for(seed)
        measured = {request.id for request in schedule.requests if request.measured}
        run = simulate(
            arrivals(schedule), config, self.costs, self.model,
            abort_pause_s=abort_pause_s, watched=measured, waits=_waits(schedule), retries=_retries(schedule),
            noise=self.surroundings.noise(seed), with_history=False,
        )  # fmt: skip
        records = self.surroundings.seen((r for r in run.records if r.id in measured), seed)
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


def _retries(schedule: Schedule) -> dict[str, int]:
    return {request.id: request.retries for request in schedule.requests if request.retries}


@lru_cache(maxsize=4)
def arrivals(schedule: Schedule) -> tuple[Request, ...]:
    """The requests as the scheduler sees them, with token ids that are equal where prompts are."""
    first_ids: dict[str, int] = {}
    return tuple(_arrival(request, first_ids) for request in schedule.requests)


def _arrival(scheduled: ScheduledRequest, first_ids: dict[str, int]) -> Request:
    """A prompt of no named block is of use to nobody else, and so stays out of the cache."""
    named = bool(scheduled.prefix)
    return Request(
        id=scheduled.id,
        prompt=_token_ids(scheduled, first_ids) if named else range(scheduled.prompt_tokens),
        max_tokens=scheduled.max_tokens,
        arrived_at_s=scheduled.at_s,
        priority=scheduled.priority,
        boundaries=(scheduled.prompt_tokens,) if named else (),
    )


def _token_ids(scheduled: ScheduledRequest, first_ids: dict[str, int]) -> Sequence[int]:
    """A run of ids for each block, another one for each name, and one for what no block names."""
    ids = array("q")
    for name in scheduled.prefix:
        first = first_ids.setdefault(name, len(first_ids) * _MOST_BLOCK_TOKENS)
        ids.extend(range(first, first + scheduled.prefix_block_tokens))
    own = first_ids.setdefault(f"own {scheduled.id}", len(first_ids) * _MOST_BLOCK_TOKENS)
    ids.extend(range(own, own + max(0, scheduled.prompt_tokens - len(ids))))
    return ids[: scheduled.prompt_tokens]
