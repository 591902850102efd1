"""How much time a study may still take."""

from __future__ import annotations

import math
from collections.abc import Callable

from tuner.errors import TunerError

# Confirmations may overrun the budget by this share: an answer a moment late beats none.
_OVERRUN = 0.05
# A study makes about this many full runs (baseline, rule of thumb, searches, confirmations); the rest of
# its runs are stopped early.
RUNS_PER_BUDGET = 11
# Probes read prompts of lengths that double, each twice: the longest takes about this share of the budget.
_READ_SHARE = 1 / 40
_LEAST_READ_S = 2.0


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
    def longest_read_s(self) -> float:
        """What reading one prompt may take when a server is measured."""
        return max(_LEAST_READ_S, _READ_SHARE * self.seconds)

    @property
    def left_s(self) -> float:
        return self.seconds - self.elapsed_s

    @property
    def left_to_confirm_s(self) -> float:
        return self.seconds * (1 + _OVERRUN) - self.elapsed_s


def check_affordable(run_s: float, budget_s: float) -> None:
    """Raises: TunerError: not even one run fits into the budget."""
    if run_s > budget_s:
        minutes = math.ceil(RUNS_PER_BUDGET * run_s / 60)
        raise TunerError(
            f"one run of this traffic takes {run_s:.0f} s, more than the budget of {budget_s:g} s for "
            f"everything; give --budget {minutes}m, a shorter --slo-pause or a shorter profile"
        )
