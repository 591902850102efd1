"""How many prompt tokens a step reads, and whose. Pure functions of what is unread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.core.config import PrefillOrder, PrefillPolicy, SchedulerConfig
from engine.core.cost_model import CostModel, Work
from engine.core.pace import LEAST_SHARE, UNLIMITED, Pace
from engine.core.plan import PrefillChunk

# The oldest prompt gets at least this share of every chunk, whatever the order: without it a stream of
# short prompts starves a long one for good (50 s to first token seen; our measurement, November 2026).
OLDEST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Unread:
    """A prompt that is not wholly read yet."""

    request_id: str
    start: int
    num_tokens: int
    waited_s: float


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

    @property
    def least_tokens(self) -> int:
        costs = self.pace.costs
        return int(costs.chunk_s / costs.prefill_token_s) if costs.prefill_token_s else 0

    def most_tokens(self, depth: int) -> int:
        """All of it as one chunk that begins at `depth`."""
        return min(self.tokens, self.pace.costs.max_chunk_tokens(self.seconds, depth))

    def fits(self, prompt: Unread, share: float, extends: bool) -> int:
        seconds = self.seconds * share + (self._fixed_s if extends else 0.0)
        affordable = self.pace.costs.max_chunk_tokens(seconds, prompt.start)
        return min(prompt.num_tokens, affordable, int(self.tokens * share))

    def spend(self, prompt: Unread, num_tokens: int, extends: bool) -> None:
        self.tokens -= num_tokens
        cost_s = self.pace.costs.prefill_seconds(num_tokens, prompt.start)
        self.seconds -= cost_s - (self._fixed_s if extends else 0.0)

    @property
    def _fixed_s(self) -> float:
        """What a chunk costs however short it is; a longer one pays it only once."""
        return self.pace.costs.chunk_s


def plan_prefill(
    unread: Sequence[Unread],
    decoding: Work,
    config: SchedulerConfig,
    pace: Pace,
    grid_tokens: int = 1,
) -> tuple[PrefillChunk, ...]:
    """The chunks one step reads.

    Args:
        unread: prompts in order of arrival.
        decoding: what the streams add to the step; nobody streams when it is empty.
        grid_tokens: `chunk_grid_tokens` of the model, which the paced policy heeds.
    """
    if not unread:
        return ()
    ordered = order_prompts(unread, config.prefill_order, pace.costs)
    if not decoding.decode_rows:
        return _share(unread, ordered, TokenBudget(config.solo_chunk_tokens or UNLIMITED))
    if config.prefill_policy is PrefillPolicy.WHOLE:
        return _whole(unread[0], ordered[0])
    if config.prefill_policy is PrefillPolicy.PACED:
        chunks = _share(unread, ordered, paced_budget(decoding, config.pause_target_s, pace))
        return tuple(_on_grid(chunk, grid_tokens) for chunk in chunks)
    return _share(unread, ordered, TokenBudget(tokens_beside(decoding, config)))


def _whole(oldest: Unread, first: Unread) -> tuple[PrefillChunk, ...]:
    """All of the first prompt in order, and so much of the oldest that its share is guaranteed here too."""
    if first is oldest:
        return (_chunk(first, first.num_tokens),)
    share = math.ceil(first.num_tokens * OLDEST_SHARE / (1 - OLDEST_SHARE))
    return _chunk(oldest, min(oldest.num_tokens, share)), _chunk(first, first.num_tokens)


def _on_grid(chunk: PrefillChunk, grid_tokens: int) -> PrefillChunk:
    """As it is when it completes its prompt."""
    if chunk.completes_prompt:
        return chunk
    return replace(chunk, num_tokens=tokens_on_grid(chunk.num_tokens, grid_tokens))


def tokens_on_grid(num_tokens: int, grid_tokens: int) -> int:
    """Fewer by less than a quarter or a step of the grid, so that few lengths occur; as many where they are
    fewer than the grid's.
    """
    if not 1 < grid_tokens <= num_tokens:
        return num_tokens
    step = grid_tokens
    while 8 * step <= num_tokens:
        step *= 2
    return num_tokens // step * step


def tokens_beside(decoding: Work, config: SchedulerConfig) -> int:
    """What the streams leave of a chunk of the fixed policy that goes through the model with them.

    A matrix is then as high as the knob says: three rows more than 1,024, and a step took a third longer on
    an H200, whose last tiles were all but empty (our measurement, November 2026).
    """
    chunk_tokens = config.prefill_chunk_tokens
    if decoding.num_decodes:
        return chunk_tokens
    return max(chunk_tokens - decoding.decode_rows, (chunk_tokens + 1) // 2)


def paced_budget(decoding: Work, target_s: float, pace: Pace) -> TimeBudget:
    """What a step of `target_s` has left beside the streams' tokens; at least what a share of it reads, or of
    what the step costs anyway.
    """
    decode_s, chunk_s = pace.costs.seconds(decoding), pace.costs.chunk_s
    least_s = chunk_s + LEAST_SHARE * max(target_s, decode_s + chunk_s)
    return TimeBudget(max(pace.seconds(target_s) - decode_s, least_s), pace.tokens(target_s, decoding), pace)


def order_prompts(unread: Sequence[Unread], order: PrefillOrder, costs: CostModel) -> list[Unread]:
    """Prompts in the order they are read.

    `aged` takes the highest response ratio first, (waited + service) / service, which favours short
    prompts but lets no long one wait for ever. Source: Brinch Hansen, "Short-term scheduling in
    multiprogramming systems", SOSP 1971.
    """
    if order is PrefillOrder.SHORTEST:
        return sorted(unread, key=lambda p: p.num_tokens)
    if order is PrefillOrder.AGED:
        return sorted(unread, key=lambda p: -p.waited_s / _service_s(p, costs))
    return list(unread)


def _service_s(prompt: Unread, costs: CostModel) -> float:
    """Above 0, whatever costs somebody has written down."""
    return max(costs.prefill_seconds(prompt.num_tokens, prompt.start), 1e-9)


def _share(
    unread: Sequence[Unread], ordered: Sequence[Unread], budget: TokenBudget | TimeBudget
) -> tuple[PrefillChunk, ...]:
    """Spends the budget: the oldest prompt's share first, then prompts short enough to be read whole,
    then the long ones in order.
    """
    # Even an empty budget reads one token, or a target that nothing keeps would stop all reading.
    taken = {unread[0].request_id: 0}
    _take(unread[0], max(1, budget.fits(unread[0], OLDEST_SHARE, False)), budget, taken)
    for prompt in unread:
        rest = _rest(prompt, taken)
        if budget.fits(rest, 1.0, prompt.request_id in taken) == rest.num_tokens:
            _take(prompt, rest.num_tokens, budget, taken)
    for prompt in ordered:
        rest, extends = _rest(prompt, taken), prompt.request_id in taken
        fits = budget.fits(rest, 1.0, extends)
        if extends or fits >= budget.least_tokens:
            _take(prompt, fits, budget, taken)
    return tuple(_chunk(prompt, taken[prompt.request_id]) for prompt in unread if prompt.request_id in taken)


def _rest(prompt: Unread, taken: Mapping[str, int]) -> Unread:
    """What this step has not taken of the prompt yet."""
    already = taken.get(prompt.request_id, 0)
    return replace(prompt, start=prompt.start + already, num_tokens=prompt.num_tokens - already)


def _take(prompt: Unread, num_tokens: int, budget: TokenBudget | TimeBudget, taken: dict[str, int]) -> None:
    if num_tokens > 0:
        already = taken.get(prompt.request_id, 0)
        budget.spend(_rest(prompt, taken), num_tokens, extends=already > 0)
        taken[prompt.request_id] = already + num_tokens


def _chunk(prompt: Unread, num_tokens: int) -> PrefillChunk:
    return PrefillChunk(prompt.request_id, prompt.start, num_tokens, num_tokens == prompt.num_tokens)
