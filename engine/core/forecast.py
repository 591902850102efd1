"""Predictions behind the door's answers: how long until what is inside has been read or has left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.core.config import PrefillPolicy, SchedulerConfig
from engine.core.cost_model import CostModel, Work
from engine.core.policy import UNLIMITED


def reading_seconds(
    prompts: Sequence[tuple[int, int]], decoding: Work, config: SchedulerConfig, costs: CostModel
) -> float:
    """Time to read prompts while streams go on.

    Args:
        prompts: (start, unread tokens) of each.
        decoding: one decode step of the streams; empty when nobody streams.
    """
    if not prompts:
        return 0.0
    chunk = _chunk_tokens(prompts, decoding, config, costs)
    reading_s = sum(costs.prefill_seconds(tokens, start, chunk) for start, tokens in prompts)
    num_steps = sum(-(-tokens // chunk) for _, tokens in prompts)
    return reading_s + num_steps * config.decode_steps_per_chunk * costs.seconds(decoding)


def _chunk_tokens(
    prompts: Sequence[tuple[int, int]], decoding: Work, config: SchedulerConfig, costs: CostModel
) -> int:
    """Prefill tokens of a typical step, at least 1."""
    if not decoding.decode_rows:
        return config.solo_chunk_tokens or UNLIMITED
    if config.prefill_policy is PrefillPolicy.WHOLE:
        return UNLIMITED
    if config.prefill_policy is PrefillPolicy.FIXED:
        return config.prefill_chunk_tokens
    # Halfway through a prompt is the average depth at which paced chunks are cut.
    depth = max(start + tokens // 2 for start, tokens in prompts)
    return max(1, costs.max_chunk_tokens(config.pause_target_s - costs.seconds(decoding), depth))


def slot_wait_seconds(remaining_s: Iterable[float], num_ahead: int) -> float:
    """Time until a slot falls to someone with `num_ahead` others before them.

    Args:
        remaining_s: predicted time each running request still holds its slot.
    """
    ends = sorted(remaining_s)
    if not ends:
        return 0.0
    rounds, place = divmod(num_ahead, len(ends))
    return rounds * ends[-1] + ends[place]


class MeanOutput:
    """How long answers turn out, as a running mean: `max_tokens` is mostly far more than is used."""

    # Weight of the newest answer. About the last twenty answers count.
    _WEIGHT = 0.1

    def __init__(self) -> None:
        self._mean: float | None = None

    def add(self, num_tokens: int) -> None:
        self._mean = (
            num_tokens if self._mean is None else self._mean + self._WEIGHT * (num_tokens - self._mean)
        )

    def left(self, max_tokens: int, num_sampled: int) -> float:
        """Tokens a request with this limit will probably still write; at least 1."""
        expected = max_tokens if self._mean is None else min(max_tokens, self._mean)
        return max(1.0, expected - num_sampled)
