"""A device made of a cost model: its steps take what the model says, in virtual time or in real time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, repeat
from typing import Protocol

from engine.core.cost_model import CostModel, Work
from engine.core.executor import ModelInfo
from engine.core.plan import Keep, PrefillChunk, Restore
from engine.core.request import Request

# A token that no request stops at: answers made of it run to their length.
TOKEN = -1


class Clock(Protocol):
    """The time in which the device works."""

    def __call__(self) -> float:
        """The instant, seconds."""

    def advance_to(self, at_s: float) -> None:
        """Returns at `at_s`, at once when that has passed."""


class VirtualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance_to(self, at_s: float) -> None:
        self.now_s = max(self.now_s, at_s)


def say_nothing(request: Request) -> Iterator[int]:
    """An answer of nothing but `TOKEN`."""
    return repeat(TOKEN)


@dataclass(slots=True)
class Ticket:
    """A launched step: when it ends, and the tokens it brings."""

    ends_at_s: float
    tokens: tuple[int, ...]


class SimExecutor:
    """Runs steps one after the other on a device that does not exist. Checkpoints cost it nothing.

    Args:
        noise: factor for each step's predicted seconds; 1.0 always when None.
        answer: the tokens that a request's answer is made of, without end.

    Attributes:
        depths: tokens in each row's caches.
    """

    def __init__(
        self,
        model: ModelInfo,
        costs: CostModel,
        clock: Clock,
        noise: Callable[[], float] | None = None,
        answer: Callable[[Request], Iterator[int]] = say_nothing,
    ) -> None:
        self.depths: dict[str, int] = {}
        self._model = model
        self._costs = costs
        self._clock = clock
        self._noise = noise or (lambda: 1.0)
        self._answer = answer
        self._answers: dict[str, Iterator[int]] = {}
        self._checkpoints: dict[int, int] = {}
        self._free_at_s = 0.0

    @property
    def info(self) -> ModelInfo:
        return self._model

    def start(self, request: Request) -> None:
        self.depths[request.id] = 0
        self._answers[request.id] = self._answer(request)

    def restore(self, restore: Restore) -> None:
        assert restore.num_tokens <= self._checkpoints[restore.checkpoint]
        self.depths[restore.request_id] = restore.num_tokens

    def keep(self, keep: Keep) -> None:
        assert keep.parent is None or self._checkpoints[keep.parent] == keep.start
        assert keep.num_tokens <= self.depths[keep.request_id]
        self._checkpoints[keep.checkpoint] = keep.num_tokens

    def drop(self, checkpoint: int) -> None:
        del self._checkpoints[checkpoint]

    def release(self, request_id: str) -> None:
        self.depths.pop(request_id, None)
        self._answers.pop(request_id, None)

    def launch(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...]) -> Ticket:
        for request_id in decode:
            self.depths[request_id] += 1
        for chunk in prefill:
            self.depths[chunk.request_id] += chunk.num_tokens
        depths = [self.depths[request_id] for request_id in decode]
        work = Work.of_step(depths, prefill, self._model.one_pass)
        self._free_at_s = self._ends_at_s(self._costs.seconds(work))
        completed = [chunk.request_id for chunk in prefill if chunk.completes_prompt]
        answers = map(self._answers.__getitem__, (*decode, *completed))
        return Ticket(self._free_at_s, tuple(map(next, answers)))

    def _ends_at_s(self, seconds: float) -> float:
        """When work ends that is launched now and is predicted to take so long."""
        return max(self._free_at_s, self._clock()) + seconds * self._noise()

    def repeat(self, work: Work, launched: Ticket | None) -> Iterator[float]:
        """Launches steps that write the same rows, one for each instant taken from here, and waits: for it,
        or for the one that is launched already, whose place it then takes. Answers must be the same token
        always, and `deepen` must follow.

        Args:
            work: of the first; each later one finds one token more in every row.
        """
        for kv_tokens in count(work.decode_kv_tokens, work.decode_rows):
            self._free_at_s = self._ends_at_s(self._costs.writing_seconds(work.decode_rows, kv_tokens))
            at_s = launched.ends_at_s if launched else self._free_at_s
            if launched:
                launched.ends_at_s = self._free_at_s
            self._clock.advance_to(at_s)
            yield at_s

    def deepen(self, decode: Iterable[str], num_tokens: int) -> None:
        """Counts what `repeat` has written to these rows, to each so many tokens."""
        for request_id in decode:
            self.depths[request_id] += num_tokens

    def launch_rest(self, ticket: Ticket) -> None:
        """All of it was launched."""

    def wait_nearly(self, ticket: Ticket) -> None:
        self._clock.advance_to(ticket.ends_at_s)

    def wait(self, ticket: Ticket) -> tuple[int, ...]:
        self._clock.advance_to(ticket.ends_at_s)
        return ticket.tokens

    def close(self) -> None:
        self.depths.clear()
        self._answers.clear()
        self._checkpoints.clear()
