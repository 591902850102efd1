"""What one config's durations are compared with: simulated ones over more windows, or its own other runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from engine.core.config import SchedulerConfig
from tuner.search.prescreen import Prediction


class Levels:
    """Puts configs that were simulated in few windows on a level with those that were in all: other windows
    are kinder or harder, for all configs much alike.
    """

    def __init__(self, predictions: Sequence[Prediction]) -> None:
        close = [one for one in predictions if one.is_close and math.isfinite(one.long_ttft_s)]
        self._pause = middle([one.pause_s / one.first_pause_s for one in close], 1.0)
        self._ttft = middle([one.long_ttft_s / one.first_ttft_s for one in close if one.first_ttft_s], 1.0)

    def of(self, one: Prediction) -> tuple[float, float]:
        """Worst pause and long TTFT over several windows."""
        if one.is_close:
            return one.pause_s, one.long_ttft_s
        return one.pause_s * self._pause, one.long_ttft_s * self._ttft


class OwnRuns:
    """One duration of whole runs, by config: where there is no simulator it stands for a prediction."""

    def __init__(self, runs: Iterable[tuple[SchedulerConfig, float | None]]) -> None:
        self._logs: dict[SchedulerConfig, list[float]] = {}
        for config, seconds in runs:
            if seconds:
                self._logs.setdefault(config, []).append(math.log(seconds))

    def count(self, config: SchedulerConfig) -> int:
        return len(self._logs.get(config, ()))

    def typical_s(self, config: SchedulerConfig) -> float:
        """The geometric mean. The config must have been run."""
        return math.exp(fmean(self._logs[config]))

    def ratio(self, config: SchedulerConfig, measured_s: float) -> float:
        """Of one of the runs to their mean, which lies closer to each of them than the true one does: that is
        made good (Bessel's correction).
        """
        count = self.count(config)
        apart = math.sqrt(count / (count - 1)) if count > 1 else 1.0
        return math.exp(apart * (math.log(measured_s) - fmean(self._logs[config])))


def middle(values: Sequence[float], default: float) -> float:
    """The median; the default of none."""
    return median(values) if values else default
