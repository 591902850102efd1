"""What a step may read: so many tokens, or as many as cost so many predicted seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core import layering
from engine.core.config import PrefillPolicy, SchedulerConfig
from engine.core.cost_model import Work
from engine.core.executor import ModelInfo
from engine.core.layering import Unread
from engine.core.pace import LEAST_SHARE, UNLIMITED, Pace


@dataclass(slots=True)
class TokenBudget:
    """So many tokens for all prompts together.

    Attributes:
        least_tokens: a chunk shorter than this that does not complete its prompt is not worth its fixed
            cost. How large that is nobody has told; a quarter of the budget bounds the waste.
    """

    tokens: int
    least_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.least_tokens = self.tokens // 4

    def most_tokens(self, depth: int) -> int:
        """All of it as one chunk, however deep that begins."""
        return self.tokens

    def fits(self, prompt: Unread, share: float, extends: bool) -> int:
        """Tokens of the prompt that `share` of what is left pays for.

        Args:
            extends: the prompt has a chunk in this step already, which these tokens would lengthen.
        """
        return min(prompt.num_tokens, int(self.tokens * share))

    def spend(self, prompt: Unread, num_tokens: int, extends: bool) -> None:
        self.tokens -= num_tokens


@dataclass(slots=True)
class TimeBudget:
    """So many predicted seconds for all prompts together, and no more tokens than pace dares.

    Attributes:
        least_tokens: a chunk shorter than this that does not complete its prompt would cost more for
            being a chunk than for its tokens.
    """

    seconds: float
    tokens: int
    pace: Pace
    layered_steps: int = 1

    @property
    def least_tokens(self) -> int:
        costs = self.pace.costs
        return int(costs.chunk_s / costs.prefill_token_s) if costs.prefill_token_s else 0

    def most_tokens(self, depth: int) -> int:
        """All of it as one chunk that begins at `depth`, or as a step's share of a pass that does."""
        steps = self.layered_steps
        return min(self.tokens, self.pace.costs.max_chunk_tokens(steps * self.seconds, depth) // steps)

    def fits(self, prompt: Unread, share: float, extends: bool) -> int:
        if prompt.layered:
            affordable = int(self.seconds * share / self.pace.costs.layered_token_seconds(prompt.layered))
        else:
            seconds = self.seconds * share + (self._fixed_s if extends else 0.0)
            affordable = self.pace.costs.max_chunk_tokens(seconds, prompt.start)
        return min(prompt.num_tokens, affordable, int(self.tokens * share))

    def spend(self, prompt: Unread, num_tokens: int, extends: bool) -> None:
        self.tokens -= num_tokens
        if prompt.layered:
            self.seconds -= num_tokens * self.pace.costs.layered_token_seconds(prompt.layered)
            return
        cost_s = self.pace.costs.prefill_seconds(num_tokens, prompt.start)
        self.seconds -= cost_s - (self._fixed_s if extends else 0.0)

    @property
    def _fixed_s(self) -> float:
        """What a chunk costs however short it is; a longer one pays it only once."""
        return self.pace.costs.chunk_s


def budget_beside(
    decoding: Work, config: SchedulerConfig, pace: Pace, model: ModelInfo
) -> TokenBudget | TimeBudget:
    """What a step may read while somebody streams."""
    if config.prefill_policy is PrefillPolicy.WHOLE:
        return TokenBudget(UNLIMITED)
    if config.prefill_policy is PrefillPolicy.PACED:
        return paced_budget(decoding, config.pause_target_s, pace, model)
    return TokenBudget(config.prefill_chunk_tokens)


def paced_budget(decoding: Work, target_s: float, pace: Pace, model: ModelInfo) -> TimeBudget:
    """What a step of `target_s` has left beside the streams' tokens; at least what a share of it reads, or of
    what the step costs anyway.
    """
    decode_s, chunk_s = pace.costs.seconds(decoding), pace.costs.chunk_s
    least_s = chunk_s + LEAST_SHARE * max(target_s, decode_s + chunk_s)
    seconds = max(pace.seconds(target_s) - decode_s, least_s)
    return TimeBudget(seconds, pace.tokens(target_s, decoding), pace, layering.most_steps(model))
