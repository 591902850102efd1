"""How far the cost model can be trusted right now, and so how much fits a step.

The model's coefficients are fitted now and then; what another process, heat or an untried size does to
a step shows at once in how it compared with the prediction. Predictions are stretched by that, and where they
are worth nothing, tokens are counted instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

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
# How much surer speed must have been than the model to decide: chance alone makes some difference.
_CLEARLY = 1.1
# From this size on, eight doublings reach 8,192 tokens.
_FIRST_CHUNK_TOKENS = 32
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a step may do that is to last so long.

    Attributes:
        tokens: the most it may read.
        seconds: the longest that it may be predicted to take; None where predictions are worth less than the
            tokens alone.
    """

    tokens: int
    seconds: float | None


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
        self._proven = proven
        self._steps: deque[tuple[Work, float]] = deque(maxlen=_REMEMBERED)
        self._timed: deque[tuple[Work, float]] = deque(maxlen=_REMEMBERED)

    def note(self, work: Work, duration_s: float) -> None:
        """Takes in one step; only those that read tell how well reading is predicted."""
        if work.prefill_tokens and duration_s > 0:
            self._steps.append((work, duration_s))
            self._timed.append((work, duration_s))

    def learn(self, costs: CostModel) -> None:
        """What steps have told about costs."""
        self.costs = costs
        self.is_guess = False

    def doubt(self) -> None:
        """Something has changed: be as careful as at the start until new steps say otherwise."""
        self._steps.clear()

    def allowance(self, target_s: float) -> Allowance:
        """For a step that is to last `target_s`.

        A step is judged in two ways: by the cost model, and by its tokens at the speed of late. Whichever was
        surer of late decides. Speed also bounds what the model says: n times the tokens take at most n times
        as long, for what a chunk costs beside its tokens is paid once.
        """
        if self._proven:
            return Allowance(_UNLIMITED, self._seconds(target_s))
        large = self._large()
        if not large:
            return Allowance(_FIRST_CHUNK_TOKENS, self._seconds(target_s))
        slowness = [duration_s / work.prefill_tokens for work, duration_s in large]
        ratios = [duration_s / max(self.costs.seconds(work), 1e-9) for work, duration_s in large]
        if len(large) >= _ENOUGH and _CLEARLY * _spread(slowness) < _spread(ratios):
            return Allowance(int(target_s / _quantile(slowness, _MARGIN_QUANTILE)), None)
        vouched_for = int(target_s / _quantile(slowness, 0.5))
        return Allowance(max(_FIRST_CHUNK_TOKENS, vouched_for), self._seconds(target_s))

    def _seconds(self, target_s: float) -> float:
        """The target less what steps took beyond what was predicted. In seconds, not as a share: what holds a
        small step up for 50 ms does the same to a large one.
        """
        if len(self._steps) < _ENOUGH:
            return target_s / (1.0 if self._proven else _UNPROVEN_MARGIN)
        beyond = [duration_s - self.costs.seconds(work) for work, duration_s in self._steps]
        return min(2 * target_s, target_s - _quantile(beyond, _MARGIN_QUANTILE))

    def _large(self) -> list[tuple[Work, float]]:
        """The steps that read at least half as much as the largest: what a step costs beside its tokens
        weighs least there.
        """
        largest = max((work.prefill_tokens for work, _ in self._timed), default=0)
        return [(work, s) for work, s in self._timed if 2 * work.prefill_tokens >= largest]


def _spread(samples: Sequence[float]) -> float:
    return _quantile(samples, _MARGIN_QUANTILE) / _quantile(samples, 0.5)


def _quantile(samples: Sequence[float], share: float) -> float:
    found = nearest_rank(samples, share)
    assert found is not None, "no samples"
    return found
