"""What the engine thread says of itself, and of the requests inside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.core.events import Event, FinishedEvent, StepRecord
from engine.core.executor import ModelInfo


class EngineState(StrEnum):
    """Where the engine thread is in its life."""

    LOADING = "loading"
    READY = "ready"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A request met an engine that is not ready; nothing was tried."""

    state: EngineState


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and warm; also sent after each recovery."""

    model: ModelInfo


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step ended, and what it brought about."""

    record: StepRecord
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Crashed:
    """The executor failed; every request that was inside ends here."""

    message: str
    events: list[FinishedEvent]


@dataclass(frozen=True, slots=True)
class Ended:
    """The thread is over, on its own account when there is an error. The last notice."""

    error: Exception | None
    events: list[FinishedEvent]


Notice = Ready | Stepped | Crashed | Ended
