"""How far the cost model can be trusted right now, and so how much fits a step.

The model's coefficients are fitted now and then; what another process, heat or an untried size does to
a step shows at once in how it compared with the prediction. Predictions are stretched by that.
"""

from __future__ import annotations

from collections import deque

from engine.core.cost_model import CostModel, Work
from engine.core.quantiles import nearest_rank

# The numbers below were chosen, none was measured by itself. Together they were: the p99 of paced steps came
# to 0.97 to 1.08 of the target (tests/benchmarks/pace.py, November 2026; in the README).

# Three stalls of other programs among so many steps do not count, four do: 64 · 0.05 = 3.2. A few prompts are
# as many steps, so that heat or a busy machine shows within seconds.
_REMEMBERED = 64
_MARGIN_QUANTILE = 0.95
# Before this many steps have been compared, predictions are stretched by the factor below. With fewer the
# quantile above is their maximum, and one stall is all it says.
_ENOUGH = 8
# A model that was not tried yet may be off by half: that is where a fit counts as none (`cost_fit`).
_UNPROVEN_MARGIN = 1.5
# A chunk may be at most this many times the largest that was ever timed: costs need not stay linear
# beyond what was seen. From the first size on, eight doublings reach 8,192 tokens.
_GROWTH = 2
_FIRST_CHUNK_TOKENS = 32


class Pace:
    """A cost model with the margin that its recent errors ask for.

    Args:
        proven: the model is known to be right (a simulated device runs on it); no bound on growth.

    Attributes:
        is_guess: nothing is known yet of what work costs here.
    """

    def __init__(self, costs: CostModel, proven: bool = False) -> None:
        self.costs = costs
        self.is_guess = not proven
        self._unproven_margin = 1.0 if proven else _UNPROVEN_MARGIN
        self._largest_tokens = 1 << 62 if proven else 0
        self._steps: deque[tuple[Work, float]] = deque(maxlen=_REMEMBERED)

    def note(self, work: Work, duration_s: float) -> None:
        """Takes in one step; only those that read tell how well reading is predicted."""
        self._largest_tokens = max(self._largest_tokens, work.prefill_tokens)
        if work.prefill_tokens:
            self._steps.append((work, duration_s))

    def learn(self, costs: CostModel) -> None:
        """What steps have told about costs."""
        self.costs = costs
        self.is_guess = False

    def doubt(self) -> None:
        """Something has changed: be as careful as at the start until new steps say otherwise."""
        self._steps.clear()

    @property
    def max_chunk_tokens(self) -> int:
        return max(_FIRST_CHUNK_TOKENS, _GROWTH * self._largest_tokens)

    @property
    def margin(self) -> float:
        """How much longer than predicted a step may take; at least 1."""
        if len(self._steps) < _ENOUGH:
            return self._unproven_margin
        ratios = [duration / max(self.costs.seconds(work), 1e-9) for work, duration in self._steps]
        return max(1.0, nearest_rank(ratios, _MARGIN_QUANTILE) or 1.0)
