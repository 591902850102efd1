"""An executor in virtual time: steps take what the cost model says they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.core.cost_model import CostModel, Work
from engine.core.executor import ModelInfo
from engine.core.plan import Keep, PrefillChunk, Restore
from engine.core.request import Request


class VirtualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance_to(self, at_s: float) -> None:
        self.now_s = max(self.now_s, at_s)


@dataclass(frozen=True, slots=True)
class _Ticket:
    ends_at_s: float
    tokens: tuple[int, ...]


class SimExecutor:
    """Runs steps one after the other on a virtual device.

    Args:
        noise: factor for each step's predicted seconds; 1.0 always when None.
        runs_ahead: as of the device that is simulated.
    """

    # Any id that no request treats as a stop token: simulated answers run to their length.
    TOKEN = -1

    def __init__(
        self,
        model: ModelInfo,
        costs: CostModel,
        clock: VirtualClock,
        noise: Callable[[], float] | None = None,
        runs_ahead: bool = True,
    ) -> None:
        self.runs_ahead = runs_ahead
        self._model = model
        self._costs = costs
        self._clock = clock
        self._noise = noise or (lambda: 1.0)
        self._depths: dict[str, int] = {}
        self._checkpoints: dict[int, int] = {}
        self._free_at_s = 0.0

    @property
    def info(self) -> ModelInfo:
        return self._model

    def start(self, request: Request) -> None:
        self._depths[request.id] = 0

    def restore(self, restore: Restore) -> None:
        assert restore.num_tokens <= self._checkpoints[restore.checkpoint]
        self._depths[restore.request_id] = restore.num_tokens

    def keep(self, keep: Keep) -> None:
        assert keep.parent is None or self._checkpoints[keep.parent] == keep.start
        assert keep.num_tokens <= self._depths[keep.request_id]
        self._checkpoints[keep.checkpoint] = keep.num_tokens

    def drop(self, checkpoint: int) -> None:
        del self._checkpoints[checkpoint]

    def release(self, request_id: str) -> None:
        self._depths.pop(request_id, None)

    def launch(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...]) -> _Ticket:
        for request_id in decode:
            self._depths[request_id] += 1
        for chunk in prefill:
            self._depths[chunk.request_id] += chunk.num_tokens
        depths = [self._depths[request_id] for request_id in decode]
        work = Work.of_step(depths, prefill, self._model.one_pass)
        starts_at_s = max(self._free_at_s, self._clock())
        self._free_at_s = starts_at_s + self._costs.seconds(work) * self._noise()
        num_tokens = len(decode) + sum(chunk.completes_prompt for chunk in prefill)
        return _Ticket(self._free_at_s, (self.TOKEN,) * num_tokens)

    def wait_nearly(self, ticket: _Ticket) -> None:
        self._clock.advance_to(ticket.ends_at_s)

    def wait(self, ticket: _Ticket) -> tuple[int, ...]:
        self._clock.advance_to(ticket.ends_at_s)
        return ticket.tokens

    def close(self) -> None:
        self._depths.clear()
        self._checkpoints.clear()
