"""How much time a study may still take."""

from __future__ import annotations

from collections.abc import Callable

# Confirmations may overrun the budget by this share: an answer a moment late beats none.
_OVERRUN = 0.05


class Budget:
    """Wall time, counted on `clock`.

    Args:
        seconds: for the whole study, from now on.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._started_at_s = clock()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started_at_s

    @property
    def left_s(self) -> float:
        return self.seconds - self.elapsed_s

    @property
    def left_to_confirm_s(self) -> float:
        return self.seconds * (1 + _OVERRUN) - self.elapsed_s
