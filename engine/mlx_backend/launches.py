"""Launching device work and waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Launched work: what to wait for and what it returns.

    Attributes:
        tokens: the tokens drawn, `(n,)`; None when none is.
        state: everything that the work leaves behind, so that no later launch has to compute it.
        ends: computed when the work is.
        cuts: computed one after the other, the first when a little of the work is, the last when most of it
            is; none when it is launched whole.
    """

    tokens: mx.array | None
    state: Sequence[mx.array]
    ends: Sequence[mx.array] = ()
    cuts: Sequence[mx.array] = ()


def launch(ticket: Ticket) -> None:
    """Sends the ticket's first part to the device, or all of it when it was not cut.

    MLX takes ten command buffers at once and then blocks until one is done (transforms.cpp,
    MAX_ACTIVE_TASKS). A layer fills about one, so all layers of a step would hold the caller up for most of
    that step.
    """
    start(ticket.cuts[:1] or _all(ticket))


def launch_rest(ticket: Ticket) -> None:
    """Sends what `launch` left."""
    if ticket.cuts:
        # Apart from one another, because what is launched together is reported done together.
        for cut in ticket.cuts[1:]:
            start([cut])
        start(_all(ticket))


def start(arrays: Sequence[mx.array]) -> None:
    """Sends the computation of `arrays`."""
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


def wait_nearly(ticket: Ticket) -> None:
    """Blocks until most of the ticket's work is done, or all of it when it was not cut."""
    mx.eval(ticket.cuts or _ends(ticket))


def wait(ticket: Ticket) -> tuple[int, ...]:
    """Blocks until the ticket's work is done; returns its tokens."""
    mx.eval(_ends(ticket))
    if ticket.tokens is None:
        return ()
    numbers: Any = ticket.tokens.tolist()
    return tuple(int(number) for number in numbers)


def _all(ticket: Ticket) -> list[mx.array]:
    return [*_ends(ticket), *ticket.state]


def _ends(ticket: Ticket) -> list[mx.array]:
    return [*ticket.ends] if ticket.tokens is None else [ticket.tokens, *ticket.ends]
