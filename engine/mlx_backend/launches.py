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
        tokens: the tokens drawn, `(n,)`; None when none is.
        marker: computed when the work is. It never shares memory with a cache, because a cache that
            somebody else can see is copied, not extended.
        early: computed when most of the work is.
    """

    tokens: mx.array | None
    marker: mx.array | None = None
    early: mx.array | None = None


def launch(ticket: Ticket, arrays: Sequence[mx.array]) -> Ticket:
    """Sends the computation of the ticket's arrays and of `arrays` to the device."""
    if ticket.early is not None and not on_cpu():
        # Apart from the rest, because what is launched together is reported done together.
        start([ticket.early])
    start([*_ends(ticket), *arrays])
    return ticket


def start(arrays: Sequence[mx.array]) -> None:
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


def wait_nearly(ticket: Ticket) -> None:
    """Blocks until the ticket's early part is done, or all of it when there is none."""
    mx.eval(_ends(ticket) if ticket.early is None else ticket.early)


def wait(ticket: Ticket) -> tuple[int, ...]:
    """Blocks until the ticket's work is done; returns its tokens."""
    mx.eval(_ends(ticket))
    if ticket.tokens is None:
        return ()
    numbers: Any = ticket.tokens.tolist()
    return tuple(int(number) for number in numbers)


def _ends(ticket: Ticket) -> list[mx.array]:
    return [array for array in (ticket.tokens, ticket.marker) if array is not None]
