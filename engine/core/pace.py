"""How far the cost model can be trusted right now, and so how much fits a step.

The model's coefficients are fitted now and then; what another process, heat or an untried size does to
a launch shows at once in how it compared with the prediction. Predictions are stretched by that.
"""

from __future__ import annotations

from collections import deque

from engine.core.cost_model import CostModel, Work
from engine.core.quantiles import nearest_rank

_REMEMBERED = 64
_MARGIN_QUANTILE = 0.95
# Before this many launches have been compared, predictions are stretched by the factor below.
_ENOUGH = 8
_UNPROVEN_MARGIN = 1.5
# A chunk may be at most this many times the largest that was ever timed: costs need not stay linear
# beyond what was seen. From the first size on, eight doublings reach 8,192 tokens.
_GROWTH = 2
_FIRST_CHUNK_TOKENS = 32


class Pace:
    """A cost model with the margin that its recent errors ask for.

    Args:
        proven: the model is known to be right (a simulated device runs on it); no bound on growth.
    """

    def __init__(self, costs: CostModel, proven: bool = False) -> None:
        self.costs = costs
        self._unproven_margin = 1.0 if proven else _UNPROVEN_MARGIN
        self._largest_tokens = 1 << 62 if proven else 0
        self._prefills: deque[tuple[Work, float]] = deque(maxlen=_REMEMBERED)
        self._decodes: deque[tuple[Work, float]] = deque(maxlen=_REMEMBERED)

    def note(self, work: Work, duration_s: float) -> None:
        """Takes in one settled launch."""
        (self._decodes if work.decode_rows else self._prefills).append((work, duration_s))
        self._largest_tokens = max(self._largest_tokens, work.prefill_tokens)

    def doubt(self) -> None:
        """Something has changed: be as careful as at the start until new launches say otherwise."""
        self._prefills.clear()
        self._decodes.clear()

    @property
    def max_chunk_tokens(self) -> int:
        return max(_FIRST_CHUNK_TOKENS, _GROWTH * self._largest_tokens)

    def decode_seconds(self, decoding: Work) -> float:
        """What a decode step may take."""
        return self.costs.seconds(decoding) * self._margin(self._decodes)

    def chunk_tokens(self, budget_s: float, start: int) -> int:
        """The most tokens whose chunk at depth `start` may be expected to end within `budget_s`."""
        fits = self.costs.max_chunk_tokens(budget_s / self.prefill_margin, start)
        return min(fits, self.max_chunk_tokens)

    def prefill_seconds(self, num_tokens: int, start: int) -> float:
        """What a chunk may take."""
        return self.costs.prefill_seconds(num_tokens, start) * self.prefill_margin

    @property
    def prefill_margin(self) -> float:
        return self._margin(self._prefills)

    def _margin(self, launches: deque[tuple[Work, float]]) -> float:
        if len(launches) < _ENOUGH:
            return self._unproven_margin
        ratios = [duration / max(self.costs.seconds(work), 1e-9) for work, duration in launches]
        return max(1.0, nearest_rank(ratios, _MARGIN_QUANTILE) or 1.0)
