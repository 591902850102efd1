"""What a step brings about: tokens, ends of requests, and a record of the work itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.core.cost_model import Work
from engine.core.plan import PrefillChunk
from engine.core.request import FinishReason
from engine.core.timeline import Timeline


class TokenEvent(NamedTuple):
    """One output token, at the instant it left the device. A tuple, because there are so many of them."""

    request_id: str
    token: int
    step: int
    at_s: float


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The end of a request: its last event, and its only one of this kind."""

    request_id: str
    reason: FinishReason
    timeline: Timeline


Event = TokenEvent | FinishedEvent


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step that has come to its end.

    Attributes:
        duration_s: from the end of the step before (or from the plan, when the device was idle) to the end
            of this one.
        prefill: chunks read.
    """

    step: int
    generation: int
    ended_at_s: float
    duration_s: float
    work: Work
    prefill: tuple[PrefillChunk, ...]
    num_running: int
    num_waiting: int
