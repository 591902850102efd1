"""What a config may cost others in a window that the baseline did not meet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from engine.core.config import SchedulerConfig
from engine.core.report import TrialSummary
from tuner.evaluation.evaluators import Evaluator
from tuner.search.objective import Allowed, lost_rate

# A window has few short requests, and which of them meet a long prompt is chance: good configs were up to 9 %
# beyond the limit in one (our simulated searches, November 2026). Chosen above that.
_CHANCE = 1.5


class Elsewhere:
    """Other windows are kinder or harder to everybody: the simulator says by how much, for the baseline.

    Args:
        simulator: None when there is none: then short requests have no limit in other windows.
        seed: of the window that the baseline met.
    """

    def __init__(self, simulator: Evaluator | None, baseline: SchedulerConfig, seed: int) -> None:
        self._simulator = simulator
        self._baseline = baseline
        self._seed = seed
        self._simulated: dict[int, TrialSummary | None] = {}

    def allowed(self, here: Allowed, seed: int, counts: Mapping[str, int]) -> Allowed:
        """The limits in another window.

        Args:
            here: those in the baseline's own.
            counts: requests of a run in the other window. One of them may be lost for no reason that counts.
        """
        one = 1.0 / max(1, sum(counts.values()))
        ours, theirs = self._simulate(self._seed), self._simulate(seed)
        if ours is None or theirs is None:
            return replace(here, lost_rate=here.lost_rate + one, short_ttft_s=None)
        harder = max(1.0, (theirs.short_ttft_p95_s or 0.0) / (ours.short_ttft_p95_s or math.inf))
        short_s = here.short_ttft_s and _CHANCE * harder * here.short_ttft_s
        return Allowed(max(here.lost_rate, lost_rate(theirs.counts)) + one, short_s)

    def _simulate(self, seed: int) -> TrialSummary | None:
        if seed not in self._simulated:
            run = self._simulator.evaluate(self._baseline, seed, None) if self._simulator else None
            self._simulated[seed] = run.summary if run else None
        return self._simulated[seed]
