"""Which launched step to wait for, and when.

The device runs what is launched in order; the host may run ahead of it. Running ahead hides host work, but
whoever arrives meanwhile waits longer. So the host is one step ahead at most:

- a step that reads was launched: wait until it is nearly done. What is launched next reaches the device in
  time, and a newcomer still waits one step at most.
- a step that only writes was launched: wait for the step before it. The device always has the next one
  queued, and tokens leave as soon as they exist.
- a step that ends a layered pass and with it a prompt was launched: wait for it. What follows mostly just
  writes; launching that takes as long as the step itself (10 to 20 ms on an H200; our measurement, November
  2026), and would hold the first token back.
- nothing was launched: wait for what is left.

A step is launched in two parts, with the wait for the step before in between: a device takes only so much
work at once, and whoever hands it the whole step is held up until most of that step is done, while tokens of
the one before are ready to be sent.

Where a launch may block until the work is done, running ahead hides nothing and holds tokens back: every
step is waited for at once.
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
    """One step that has come to its end.

    Attributes:
        step, generation: of its plan.
        decode: rows that wrote a token each.
        prefill: chunks that were read.
        tokens: of the rows, in order, then the first tokens of the chunks that completed a prompt.
    """

    step: int
    generation: int
    decode: tuple[str, ...]
    prefill: tuple[PrefillChunk, ...]
    tokens: tuple[int, ...]

    def tokens_by_request(self) -> Iterator[tuple[str, int]]:
        """Pairs of request id and the token it got."""
        completed = (c.request_id for c in self.prefill if c.completes_prompt)
        return zip((*self.decode, *completed), self.tokens, strict=True)


class Pipeline:
    """Carries out plans on an executor, in order, waiting only where the rules above say so."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._in_flight: deque[tuple[StepPlan, Any]] = deque()

    def execute(self, plan: StepPlan) -> Iterator[Settled]:
        """Launches the plan's work at once; yields each step, this or an earlier one, as it ends."""
        self._prepare(plan)
        if not plan.decode and not plan.prefill:
            yield from self._settle_all_but(0)
            return
        ticket = self._executor.launch(plan.decode, plan.prefill)
        self._in_flight.append((plan, ticket))
        yield from self._settle_all_but(1)
        self._executor.launch_rest(ticket)
        for keep in plan.keep:
            self._executor.keep(keep)
        if not self._executor.info.runs_ahead or any(c.layered and c.completes_prompt for c in plan.prefill):
            yield from self._settle_all_but(0)
        elif plan.prefill:
            self._executor.wait_nearly(ticket)

    def _prepare(self, plan: StepPlan) -> None:
        for request_id in plan.release:
            self._executor.release(request_id)
        for request in plan.start:
            self._executor.start(request)
        for restore in plan.restore:
            self._executor.restore(restore)
        for checkpoint in plan.drop:
            self._executor.drop(checkpoint)

    def _settle_all_but(self, num_left: int) -> Iterator[Settled]:
        while len(self._in_flight) > num_left:
            yield self._settle(*self._in_flight.popleft())

    def _settle(self, plan: StepPlan, ticket: Any) -> Settled:
        tokens = self._executor.wait(ticket)
        return Settled(plan.step, plan.generation, plan.decode, plan.prefill, tokens)
