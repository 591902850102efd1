"""What happened lately: steps and ended requests, kept for a while and summed up on demand."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Generic, TypeVar

from engine.core.quantiles import nearest_rank, supported
from engine.core.timeline import Timeline

T = TypeVar("T")

_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_TOP_PAUSES = 5


class Log(Generic[T]):
    """The newest entries of an endless sequence, numbered from 1 on."""

    def __init__(self, remember: int) -> None:
        self._entries: deque[T] = deque(maxlen=remember)
        self.last_seq = 0

    def add(self, entry: T) -> int:
        self._entries.append(entry)
        self.last_seq += 1
        return self.last_seq

    def after(self, seq: int) -> list[tuple[int, T]]:
        """Numbered entries newer than `seq`, as far as they are remembered; oldest first."""
        missing = max(0, min(len(self._entries), self.last_seq - seq))
        newest = list(self._entries)[len(self._entries) - missing :]
        return list(enumerate(newest, self.last_seq - missing + 1))

    def snapshot(self) -> list[T]:
        """All that is remembered, oldest first."""
        return list(self._entries)


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that was let in, once it is over.

    Attributes:
        last_generation: the config in force at its end; `timeline.generation` at its arrival.
    """

    id: str
    outcome: str
    prompt_tokens: int
    last_generation: int
    timeline: Timeline

    @property
    def ended_at_s(self) -> float:
        return self.timeline.ended_at_s or 0.0

    def to_mapping(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "outcome": self.outcome,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.timeline.num_output_tokens,
            "generation": self.timeline.generation,
            "last_generation": self.last_generation,
            "arrived_at_s": self.timeline.arrived_at_s,
            "ended_at_s": self.timeline.ended_at_s,
        } | timings(self.timeline)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was turned away."""

    at_s: float
    code: str
    generation: int


def timings(timeline: Timeline) -> dict[str, Any]:
    """A request's own times, as the API gives them."""
    cause = timeline.worst_pause_cause
    return {
        "queue_s": timeline.queue_s,
        "prefill_s": timeline.prefill_s,
        "prefill_chunks": timeline.num_chunks,
        "cached_tokens": timeline.cached_tokens,
        "ttft_s": timeline.ttft_s,
        "worst_pause_s": timeline.worst_pause_s,
        "worst_pause_cause": dataclasses.asdict(cause) if cause else None,
    }


def summarize(
    ended: Sequence[EndedRequest], refused: Sequence[Refusal], since_s: float, slo_pause_s: float | None
) -> dict[str, Any]:
    """Counts and quantiles of what ended since `since_s`, all together and by generation.

    Args:
        ended, refused: oldest first.
        slo_pause_s: count streams that paused longer than this.
    """
    requests = list(takewhile(lambda r: r.ended_at_s >= since_s, reversed(ended)))
    refusals = list(takewhile(lambda r: r.at_s >= since_s, reversed(refused)))
    generations = sorted({r.timeline.generation for r in requests} | {r.generation for r in refusals})
    return _summary(requests, refusals, slo_pause_s) | {
        "top_pauses": _top_pauses(requests),
        "by_generation": {
            str(g): _summary(
                [r for r in requests if r.timeline.generation == g],
                [r for r in refusals if r.generation == g],
                slo_pause_s,
            )
            for g in generations
        },
    }


def _summary(
    requests: Sequence[EndedRequest], refusals: Sequence[Refusal], slo_pause_s: float | None
) -> dict[str, Any]:
    pauses = [r.timeline.worst_pause_s for r in requests]
    # Streams that saw one config only are evidence about it; the others prove nothing.
    whole = [r for r in requests if r.last_generation == r.timeline.generation and r.timeline.worst_pause_s]
    return {
        "outcomes": dict(Counter(r.outcome for r in requests)) | {"refused": len(refusals)},
        "refusals": dict(Counter(r.code for r in refusals)),
        "ttft_s": quantiles(r.timeline.ttft_s for r in requests),
        "worst_pause_s": quantiles(pauses),
        "whole_streams": len(whole),
        "whole_streams_over_slo": _num_over(whole, slo_pause_s),
    }


def _num_over(requests: Sequence[EndedRequest], slo_pause_s: float | None) -> int | None:
    if slo_pause_s is None:
        return None
    return sum((r.timeline.worst_pause_s or 0.0) > slo_pause_s for r in requests)


def quantiles(samples: Iterable[float | None]) -> dict[str, float | int | None]:
    """n, the maximum, and those percentiles that n supports; the others are None."""
    known = [s for s in samples if s is not None]
    percentiles = {
        name: nearest_rank(known, q) if supported(q, len(known)) else None for name, q in _QUANTILES.items()
    }
    return {"n": len(known), "max": max(known, default=None), **percentiles}


def _top_pauses(requests: Sequence[EndedRequest]) -> list[dict[str, Any]]:
    paused = [r for r in requests if r.timeline.worst_pause_s is not None]
    paused.sort(key=lambda r: -(r.timeline.worst_pause_s or 0.0))
    return [
        {
            "id": r.id,
            "pause_s": r.timeline.worst_pause_s,
            "generation": r.timeline.generation,
            "cause": timings(r.timeline)["worst_pause_cause"],
        }
        for r in paused[:_TOP_PAUSES]
    ]
