"""How many prompt tokens a step reads, and whose. Pure functions of what is unread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.core import layering
from engine.core.budget import TimeBudget, TokenBudget, budget_beside
from engine.core.config import PrefillOrder, PrefillPolicy, SchedulerConfig
from engine.core.cost_model import CostModel, Work
from engine.core.executor import ModelInfo
from engine.core.layering import Unread, tokens_on_grid
from engine.core.pace import UNLIMITED, Pace
from engine.core.plan import PrefillChunk

# The oldest prompt gets at least this share of every chunk, whatever the order: without it a stream of
# short prompts starves a long one for good (50 s to first token seen; our measurement, November 2026).
OLDEST_SHARE = 0.25


def plan_prefill(
    unread: Sequence[Unread],
    decoding: Work,
    config: SchedulerConfig,
    pace: Pace,
    model: ModelInfo,
) -> tuple[PrefillChunk, ...]:
    """The chunks one step reads.

    Args:
        unread: prompts in order of arrival.
        decoding: what the streams add to the step; nobody streams when it is empty.
    """
    if not unread:
        return ()
    beside, solo_tokens = budget_beside(decoding, config, pace, model), config.solo_chunk_tokens or UNLIMITED
    budget = beside if decoding.decode_rows else TokenBudget(solo_tokens)
    grid_tokens = model.chunk_grid_tokens if config.prefill_policy is PrefillPolicy.PACED else 1

    def in_layers(prompt: Unread) -> Unread:
        """With the pass that a chunk of it would begin. It is as for streams and for nobody, for they may
        come and go before it has come to its end.
        """
        step_tokens = min(solo_tokens, beside.most_tokens(prompt.start))
        layered = layering.begin(prompt, step_tokens, model, grid_tokens)
        fits_step = layered and layered.num_tokens <= budget.most_tokens(prompt.start)
        return prompt if fits_step else replace(prompt, layered=layered)

    if layering.most_steps(model) > 1:
        unread = [prompt if prompt.layered else in_layers(prompt) for prompt in unread]
    ordered = order_prompts(unread, config.prefill_order, pace.costs)
    if decoding.decode_rows and config.prefill_policy is PrefillPolicy.WHOLE:
        return _whole(unread[0], ordered[0])
    chunks = _share(unread, ordered, budget)
    return tuple(_on_grid(chunk, grid_tokens) for chunk in chunks) if decoding.decode_rows else chunks


def _whole(oldest: Unread, first: Unread) -> tuple[PrefillChunk, ...]:
    """All of the first prompt in order, and so much of the oldest that its share is guaranteed here too; of
    one with a pass under way, no more than the pass.
    """
    at_once = first.halt(first.num_tokens)
    if first is oldest:
        return (_chunk(first, at_once),)
    share = math.ceil(at_once * OLDEST_SHARE / (1 - OLDEST_SHARE))
    oldest_tokens = max(oldest.least_tokens, oldest.halt(min(oldest.num_tokens, share)))
    return _chunk(oldest, oldest_tokens), _chunk(first, at_once)


def _on_grid(chunk: PrefillChunk, grid_tokens: int) -> PrefillChunk:
    """As it is when it completes its prompt, or is a share of a pass."""
    if chunk.completes_prompt or chunk.layered:
        return chunk
    return replace(chunk, num_tokens=tokens_on_grid(chunk.num_tokens, grid_tokens))


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
    # Even an empty budget reads a little, or a target that nothing keeps would stop all reading.
    taken = {unread[0].request_id: 0}
    share = budget.fits(unread[0], OLDEST_SHARE, False)
    _take(unread[0], max(unread[0].least_tokens, share), budget, taken)
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
    already = taken.get(prompt.request_id, 0)
    total = prompt.halt(already + num_tokens)
    if total > already:
        budget.spend(_rest(prompt, taken), total - already, extends=already > 0)
        taken[prompt.request_id] = total


def _chunk(prompt: Unread, num_tokens: int) -> PrefillChunk:
    completes = num_tokens == prompt.num_tokens
    return PrefillChunk(prompt.request_id, prompt.start, num_tokens, completes, prompt.layered)
