"""Launching device work and waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.mlx_backend.device import on_cpu


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Launched work: what to wait for and what it returns.

    Attributes:
        tokens: the tokens drawn, `(n,)` in all.
        markers: computed when the work is. They never share memory with a cache, because a cache that
            somebody else can see is copied, not extended.
        early: computed when most of the work is, if the work was cut so.
    """

    tokens: Sequence[mx.array]
    markers: Sequence[mx.array] = ()
    early: mx.array | None = None


class Launches:
    """Work on its way to the device, in launch order.

    A GPU gets it at once. On a CPU, `mx.async_eval` comes back only when all but ten tasks are done
    (MLX, transforms.cpp, MAX_ACTIVE_TASKS): a chunk launched behind a decode step would keep the step's
    finished tokens from being sent until the chunk is done too. There the newest launch is held until
    something follows it or waits for it, so that what ends first is heard of first.
    """

    def __init__(self) -> None:
        self._holds = on_cpu()
        self._held: list[mx.array] = []
        self._held_ticket: Ticket | None = None

    def launch(self, ticket: Ticket, arrays: Sequence[mx.array]) -> Ticket:
        """Launches the computation of the ticket's arrays and of `arrays`."""
        self._start_held()
        everything = [*ticket.tokens, *ticket.markers, *arrays]
        if self._holds:
            self._held, self._held_ticket = everything, ticket
            return ticket
        if ticket.early is not None:
            # Apart from the rest, because what is launched together is reported done together.
            _start([ticket.early])
        _start(everything)
        return ticket

    def extend(self, arrays: Sequence[mx.array]) -> None:
        """Launches the computation of `arrays` behind the newest launch, which still counts as the newest."""
        if self._held:
            self._held = [*self._held, *arrays]
        else:
            _start(arrays)

    def wait_nearly(self, ticket: Ticket) -> None:
        """Blocks until the ticket's early part is done, or all of it when there is none."""
        if ticket.early is None or self._holds:
            self.wait(ticket)
        else:
            mx.eval(ticket.early)

    def wait(self, ticket: Ticket) -> tuple[int, ...]:
        """Blocks until the ticket's work is done; returns its tokens."""
        if ticket is self._held_ticket:
            self._start_held()
        mx.eval(ticket.tokens, ticket.markers)
        return tuple(token for tokens in ticket.tokens for token in _numbers(tokens))

    def clear(self) -> None:
        """Drops held work and waits for what the device has."""
        self._held, self._held_ticket = [], None
        mx.synchronize()

    def _start_held(self) -> None:
        held, self._held, self._held_ticket = self._held, [], None
        if held:
            _start(held)


def _start(arrays: Sequence[mx.array]) -> None:
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


def _numbers(tokens: mx.array) -> list[int]:
    numbers: Any = tokens.tolist()
    return [int(number) for number in numbers]
