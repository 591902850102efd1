"""How many prompt tokens a step reads, and whose. Pure functions of what is unread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.config import PrefillOrder, PrefillPolicy, SchedulerConfig
from engine.core.cost_model import CostModel, Work
from engine.core.plan import PrefillChunk

UNLIMITED = 1 << 62

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


def plan_prefill(
    unread: Sequence[Unread], decoding: Work, config: SchedulerConfig, costs: CostModel
) -> tuple[PrefillChunk, ...]:
    """The chunks one step reads.

    Args:
        unread: prompts in order of arrival.
        decoding: this step's decode work; nobody streams when it is empty.
    """
    if not unread:
        return ()
    ordered = order_prompts(unread, config.prefill_order, costs)
    if decoding.decode_rows and config.prefill_policy is PrefillPolicy.WHOLE:
        return _share_budget(ordered[:1], unread[0], ordered[0].num_tokens)
    budget = prefill_budget(max(p.start for p in unread), decoding, config, costs)
    return _share_budget(ordered, unread[0], budget)


def prefill_budget(start: int, decoding: Work, config: SchedulerConfig, costs: CostModel) -> int:
    """Prompt tokens a step may read in all, at least 1.

    Args:
        start: depth of the deepest prompt, where a token is dearest.
    """
    if not decoding.decode_rows:
        return config.solo_chunk_tokens or UNLIMITED
    if config.prefill_policy is PrefillPolicy.PACED:
        left_s = config.pause_target_s - costs.seconds(decoding)
        return max(1, costs.max_chunk_tokens(left_s, start))
    return config.prefill_chunk_tokens


def order_prompts(unread: Sequence[Unread], order: PrefillOrder, costs: CostModel) -> list[Unread]:
    """Prompts in the order they are read.

    `aged` takes the highest response ratio first, (waited + service) / service, which favours short
    prompts but lets no long one wait for ever. Source: Brinch Hansen, "Short-term scheduling in
    multiprogramming systems", SOSP 1971.
    """
    if order is PrefillOrder.SHORTEST:
        return sorted(unread, key=lambda p: p.num_tokens)
    if order is PrefillOrder.AGED:
        return sorted(unread, key=lambda p: -p.waited_s / costs.prefill_seconds(p.num_tokens, p.start))
    return list(unread)


def _share_budget(ordered: Sequence[Unread], oldest: Unread, budget: int) -> tuple[PrefillChunk, ...]:
    reserved = min(oldest.num_tokens, max(1, int(budget * OLDEST_SHARE)))
    chunks = []
    for prompt in ordered:
        if prompt is oldest:
            reserved = 0
        take = min(prompt.num_tokens, budget - reserved)
        if take > 0:
            chunks.append(PrefillChunk(prompt.request_id, prompt.start, take, take == prompt.num_tokens))
            budget -= take
    return tuple(chunks)
