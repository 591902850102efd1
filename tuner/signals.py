"""Ctrl-C and SIGTERM as one exception, once: what is put back then must not be interrupted again."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from tuner.errors import Interrupted


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into `Interrupted`; ignores later ones until the block ends.

    Every wait in what follows an interruption has a time limit, so nobody is held up for good.
    """

    def on_signal(signum: int, _: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted(signum)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
