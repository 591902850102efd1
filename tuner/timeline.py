"""When the tokens of a live run came, and what the engine read meanwhile: what its picture is drawn from."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from engine.core.events import StepRecord
from engine.core.records import RequestRecord

# Kept of a run; about five bytes each. Requests beyond have no token times.
MOST_EVENTS = 100_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens that were read in one step. Seconds on the run's clock.

    Attributes:
        request_id: whose prompt; None when it is none of the run's, or did not end.
        start: of the prompt's tokens, the first that was read; or as many as a layered pass had come to.
        from_s, to_s: of the whole step, which may have read other prompts too.
    """

    request_id: str | None
    start: int
    num_tokens: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """A run, to the millisecond.

    Attributes:
        events: by request, when its content came; empty when too many came to be kept.
        chunks: in order; empty when the engine gave no step records.
    """

    events: Mapping[str, tuple[float, ...]]
    chunks: tuple[Chunk, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values: milliseconds; events as steps from one to the next."""
        return {
            "events": {name: _deltas([_ms(at_s) for at_s in times]) for name, times in self.events.items()},
            "chunks": [
                [c.request_id, c.start, c.num_tokens, _ms(c.from_s), _ms(c.to_s)] for c in self.chunks
            ],
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunTimeline:
        """What `to_mapping` gave."""
        events = {
            name: tuple(ms / 1000 for ms in itertools.accumulate(deltas))
            for name, deltas in values.get("events", {}).items()
        }
        chunks = tuple(
            Chunk(request_id, start, num_tokens, from_ms / 1000, to_ms / 1000)
            for request_id, start, num_tokens, from_ms, to_ms in values.get("chunks", ())
        )
        return cls(events, chunks)


def timeline_of(records: Sequence[RequestRecord], steps: Iterable[StepRecord]) -> RunTimeline:
    """The run's timeline. Steps that read nothing are left out: their tokens show them.

    Args:
        steps: on the engine's clock, which is taken to the client's by the stamps on the events.
    """
    room, events = MOST_EVENTS, {}
    for record in records:
        room -= len(record.events)
        events[record.id] = tuple(event.at_s for event in record.events) if room >= 0 else ()
    shift_s = _shift(records)
    return RunTimeline(events, () if shift_s is None else tuple(_chunks(records, steps, shift_s)))


def _chunks(records: Sequence[RequestRecord], steps: Iterable[StepRecord], shift_s: float) -> Iterable[Chunk]:
    said = ((record, (record.timings or {}).get("id")) for record in records)
    ours = {name: record.id for record, name in said if name is not None}
    for step in steps:
        to_s = step.ended_at_s + shift_s
        for chunk in step.prefill:
            owner = ours.get(chunk.request_id)
            yield Chunk(owner, chunk.start, chunk.num_tokens, to_s - step.duration_s, to_s)


def _shift(records: Sequence[RequestRecord]) -> float | None:
    """Seconds from the engine's clock to the client's, the way between them included."""
    lags = [
        event.at_s - event.emitted_at_s
        for record in records
        for event in record.events
        if event.emitted_at_s is not None
    ]
    return median(lags) if lags else None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _deltas(values: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in itertools.pairwise((0, *values))]
