"""Which launched work to wait for, and when.

The device runs what is launched in order; the host may run ahead of it. Running ahead hides host work,
but whoever arrives meanwhile waits longer. Three rules:

- chunks were launched after a decode: wait for the decode only. Its tokens leave at once, and the next
  step is planned while the chunks run.
- only a decode was launched: wait for everything before it. The device always has the next decode queued,
  and tokens leave as soon as they exist.
- only chunks were launched (nobody streams): wait until they are nearly done, so that the next are queued
  in time and a newcomer still waits one chunk at most. When they complete a prompt, wait for its token.

Nothing launched: wait for all that is left.

Where a launch may block until the one before is done, running ahead hides nothing and holds tokens back:
whatever is finished is waited for before the next launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.core.executor import Executor
from engine.core.plan import PrefillChunk, StepPlan


@dataclass(frozen=True, slots=True)
class Settled:
    """One launch that has come to its end.

    Attributes:
        step, generation: of the plan that launched it.
        decode: rows that wrote `tokens`, one each; empty for a prefill.
        prefill: chunks read; `tokens` are first tokens of those that complete a prompt, in order.
    """

    step: int
    generation: int
    decode: tuple[str, ...]
    prefill: tuple[PrefillChunk, ...]
    tokens: tuple[int, ...]

    def tokens_by_request(self) -> Iterator[tuple[str, int]]:
        """Pairs of request id and the token it got."""
        completed = (c.request_id for c in self.prefill if c.completes_prompt)
        return zip(self.decode or completed, self.tokens, strict=True)


@dataclass(frozen=True, slots=True)
class _Launch:
    step: int
    generation: int
    decode: tuple[str, ...]
    prefill: tuple[PrefillChunk, ...]
    ticket: Any


class Pipeline:
    """Carries out plans on an executor, in order, waiting only where the rules above say so."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._in_flight: deque[_Launch] = deque()

    def execute(self, plan: StepPlan) -> Iterator[Settled]:
        """Launches the plan's work at once; yields each launch, of this or earlier plans, as it ends."""
        for request_id in plan.release:
            self._executor.release(request_id)
        for request in plan.start:
            self._executor.start(request)
        for restore in plan.restore:
            self._executor.restore(restore)
        for checkpoint in plan.drop:
            self._executor.drop(checkpoint)
        ahead = self._executor.runs_ahead
        if plan.decode:
            ticket = self._executor.launch_decode(plan.decode)
            self._in_flight.append(_Launch(plan.step, plan.generation, plan.decode, (), ticket))
            if not ahead:
                yield from self._settle_all_but(1)
        if plan.prefill:
            ticket = self._executor.launch_prefill(plan.prefill)
            self._in_flight.append(_Launch(plan.step, plan.generation, (), plan.prefill, ticket))
        for keep in plan.keep:
            self._executor.keep(keep)
        yield from self._settle_all_but(1 if self._last_may_run_on(plan) else 0)
        if plan.prefill and not plan.decode and self._in_flight:
            self._executor.wait_nearly(self._in_flight[0].ticket)

    def _last_may_run_on(self, plan: StepPlan) -> bool:
        """Whether the plan's last launch need not be waited for yet."""
        if plan.prefill:
            return bool(plan.decode) or not any(chunk.completes_prompt for chunk in plan.prefill)
        return bool(plan.decode) and self._executor.runs_ahead

    def _settle_all_but(self, num_left: int) -> Iterator[Settled]:
        while len(self._in_flight) > num_left:
            yield self._settle(self._in_flight.popleft())

    def _settle(self, launch: _Launch) -> Settled:
        tokens = self._executor.wait(launch.ticket)
        return Settled(launch.step, launch.generation, launch.decode, launch.prefill, tokens)
