"""Waiting for what comes about at once on a machine that is not busy, and late on one that is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 120.0  # it only matters when something is broken


def until(condition: Callable[[], T], every_s: float = 0.02) -> T:
    """Polls until the condition holds; what it said then. Raises: AssertionError: it never did."""
    give_up_s = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < give_up_s, "it did not come about in time"
        time.sleep(every_s)
    return found
