"""What a simulated device does not do by itself: steps of equal work take different times, and everything a
client sends and reads is on its way for a while.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import numpy as np

from engine.core.quantiles import nearest_rank
from engine.core.records import RequestRecord, Tokens
from engine.core.report import ttft_wire

# Of what was seen, the share at either end that is taken for an accident.
_ACCIDENTS = 0.05
_MOST_SAMPLES = 200


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Samples of a probing run, to be drawn from again. Nothing is added where there are none.

    Attributes:
        stalls: measured ÷ predicted seconds of steps.
        request_s: from the client's write of a request to the scheduler, and of a first token back.
        lags_s: how much longer than usual, or shorter, a token took from the engine to the client.
    """

    stalls: tuple[float, ...] = ()
    request_s: float = 0.0
    lags_s: tuple[float, ...] = ()

    def noise(self, seed: int) -> Callable[[], float] | None:
        """Factors for steps, one after the other: the same ones for every config, so that two configs differ
        by what they do.
        """
        if not self.stalls:
            return None
        draw = np.random.default_rng([seed, 1])

        def factors() -> Iterable[float]:
            while True:
                yield from draw.choice(self.stalls, 1024).tolist()

        drawn = iter(factors())
        return lambda: next(drawn)

    def seen(self, records: Iterable[RequestRecord], seed: int) -> tuple[RequestRecord, ...]:
        """Simulated records as a client would have seen them."""
        if not self.lags_s:
            return tuple(dataclasses.replace(r, events=self._sent(r, 0.0)) for r in records)
        draw = np.random.default_rng([seed, 2])
        return tuple(
            dataclasses.replace(r, events=self._sent(r, draw.choice(self.lags_s, len(r.events))))
            for r in records
        )

    def _sent(self, record: RequestRecord, lags_s: Any) -> Tokens:
        """Bytes do not overtake one another, and nobody sees them before they were sent: to a client that was
        held up for most of a probe, its few tokens in time look early by seconds.
        """
        left_s = np.array([event.emitted_at_s for event in record.events], dtype=np.float64)
        on_its_way_s = np.maximum(self.request_s + lags_s, 0.0)
        return Tokens(np.maximum.accumulate(left_s + on_its_way_s).tolist())

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """What `to_mapping` gave. Raises: TypeError, KeyError."""
        return cls(tuple(values["stalls"]), values["request_s"], tuple(values["lags_s"]))


def surroundings_of(stalls: Sequence[float], records: Iterable[RequestRecord]) -> Surroundings:
    """What a probing run shows of them.

    Args:
        stalls: measured ÷ predicted seconds of its steps, of a model fitted to others.
        records: of its streams, as the client saw them.
    """
    records = list(records)
    extra = [
        wire_s - engine_s
        for record in records
        if (wire_s := ttft_wire(record)) is not None
        if (engine_s := (record.timings or {}).get("ttft_s")) is not None
    ]
    lags = [e.at_s - e.emitted_at_s for r in records for e in r.events if e.emitted_at_s is not None]
    usual_s = median(lags) if lags else 0.0
    return Surroundings(
        stalls=without_accidents(stalls),
        request_s=max(0.0, median(extra)) if extra else 0.0,
        lags_s=without_accidents([lag - usual_s for lag in lags]),
    )


def without_accidents(values: Sequence[float]) -> tuple[float, ...]:
    """Evenly spaced quantiles; what lies beyond the outer ones is taken for one of them."""
    if not values:
        return ()
    low, high = nearest_rank(values, _ACCIDENTS), nearest_rank(values, 1.0 - _ACCIDENTS)
    assert low is not None
    assert high is not None
    kept = sorted(min(high, max(low, value)) for value in values)
    every = -(-len(kept) // _MOST_SAMPLES)
    return tuple(kept[::every])
