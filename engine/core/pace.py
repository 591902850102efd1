"""How far the cost model can be trusted right now, and so how much fits a step.

The model's coefficients are fitted now and then; what another process, heat or an untried size does to a step
shows at once in how it compared with the prediction. What steps of late took beyond it is left free, and no
chunk is larger than the speed of late vouches for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engine.core.cost_model import CostModel, Work
from engine.core.quantiles import nearest_rank

# The numbers below were chosen, none was measured by itself. Together they were: tests/benchmarks/pace.py, in
# the README.

# Three stalls of other programs among so many steps do not count, four do: 64 · 0.05 = 3.2. A few prompts are
# as many steps, so that heat or a busy machine shows within seconds.
_REMEMBERED = 64
_MARGIN_QUANTILE = 0.95
# Before this many steps have been compared, predictions are stretched by the factor below. With fewer the
# quantile above is their maximum, and one stall is all it says.
_ENOUGH = 8
# A model that was not tried yet may be off by half: that is where a fit counts as none (`cost_fit`).
_UNPROVEN_MARGIN = 1.5
# Ends of prompts are small steps with small errors, which would hide those of the others. So steps count that
# were to take at least this share of the target, if there are enough of them.
_NEAR = 0.5
# Of the target: what steps may be predicted to take where they came in sooner; and, also of what a step costs
# anyway, what goes to tokens in any case, for a target that nothing keeps must not stop all reading.
_MOST_SHARE = 2.0
LEAST_SHARE = 0.25
_FIRST_CHUNK_TOKENS = 32
UNLIMITED = 1 << 62


class Pace:
    """A cost model, and how steps beside streams compared with it of late.

    Args:
        proven: the model is known to be right (a simulated device runs on it).

    Attributes:
        is_guess: nothing is known yet of what work costs here.
    """

    def __init__(self, costs: CostModel, proven: bool = False) -> None:
        self.costs = costs
        self.is_guess = not proven
        self._unproven_margin = 1.0 if proven else _UNPROVEN_MARGIN
        self._bounded = not proven
        self._steps: deque[tuple[Work, float]] = deque(maxlen=_REMEMBERED)
        self._since_doubt = 0

    def note(self, work: Work, duration_s: float) -> None:
        """Takes in one step; only those that read while somebody streams are paced."""
        if work.prefill_tokens and work.decode_rows:
            self._steps.append((work, duration_s))
            self._since_doubt += 1

    def learn(self, costs: CostModel) -> None:
        """What steps have told about costs."""
        self.costs = costs
        self.is_guess = False

    def doubt(self) -> None:
        """Something has changed: trust predictions as at the start, until new steps bear them out."""
        self._since_doubt = 0

    def trust_sizes(self) -> None:
        """The costs are known to hold for chunks of any size."""
        self._bounded = False

    def seconds(self, target_s: float) -> float:
        """The longest that a step may be predicted to take that is to last `target_s`.

        Less by what steps took beyond their predictions: by seconds, not by a share, because what holds a
        small step up for 50 ms does the same to a large one.
        """
        num_compared = min(self._since_doubt, len(self._steps))
        if num_compared < _ENOUGH:
            return target_s / self._unproven_margin
        compared = [(self.costs.seconds(work), s) for work, s in list(self._steps)[-num_compared:]]
        near = [pair for pair in compared if pair[0] >= _NEAR * target_s]
        beyond = [s - predicted_s for predicted_s, s in (near if len(near) >= _ENOUGH else compared)]
        return min(_MOST_SHARE * target_s, target_s - _quantile(beyond, _MARGIN_QUANTILE))

    def tokens(self, target_s: float, decoding: Work) -> int:
        """The most tokens that steps so far vouch for within `target_s`, whatever the model says of them.

        At like depth n times the tokens take at most n times as long, for what a chunk costs beside its
        tokens is paid once. Where the host is slower than the device, a model can learn that tokens cost
        nothing.

        Args:
            decoding: what the streams add to the step.
        """
        if not self._bounded:
            return UNLIMITED
        largest = max((work.prefill_tokens for work, _ in self._steps), default=0)
        large = [(work, s) for work, s in self._steps if 2 * work.prefill_tokens >= largest]
        if not large:
            return _FIRST_CHUNK_TOKENS
        streams_then_s = _quantile([self._streams_s(work) for work, _ in large], 0.5)
        more_s = max(0.0, self._streams_s(decoding) - streams_then_s)
        quickest_s = min(duration_s for _, duration_s in self._steps)
        reach_s = max(target_s - more_s, quickest_s + LEAST_SHARE * max(target_s, quickest_s))
        token_s = _quantile([duration_s / work.prefill_tokens for work, duration_s in large], 0.5)
        return max(_FIRST_CHUNK_TOKENS, int(reach_s / max(token_s, 1e-9)))

    def _streams_s(self, work: Work) -> float:
        """Of it, what goes to the rows that write."""
        return self.costs.writing_seconds(work.decode_rows, work.decode_kv_tokens, work.num_decodes)


def _quantile(samples: Sequence[float], share: float) -> float:
    found = nearest_rank(samples, share)
    assert found is not None, "no samples"
    return found
