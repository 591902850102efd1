"""What bounds the smallest pause, and what would help: said when nothing keeps the SLO."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from engine.core import layering
from engine.core.config import PrefillPolicy, SchedulerConfig
from engine.core.cost_model import CostModel, Work
from engine.core.executor import ModelInfo
from engine.core.layering import Unread
from engine.core.plan import PrefillChunk
from tuner.search.objective import Score
from tuner.search_space import MIN_CHUNK_TOKENS
from tuner.trials import Outcome

# Smaller pauses than predicted by this share are measured now and then; so much below the SLO is refused.
_FLOOR_SHARE = 0.9
_OVERLOAD_LOST = 0.05
_UNEXPLAINED = 1.3


@dataclass(frozen=True, slots=True)
class Floor:
    """What no config can go below.

    Attributes:
        decode_s: a decode step of a few streams with nothing else to do.
        chunk_s: the same beside the smallest chunk that is searched.
    """

    decode_s: float
    chunk_s: float

    def verdict(self, slo_pause_s: float) -> str | None:
        """Why this SLO is impossible; None when it may be possible."""
        if self.decode_s > _FLOOR_SHARE * slo_pause_s:
            return f"a decode step alone takes {self.decode_s:.3f} s here"
        if self.chunk_s > slo_pause_s:
            return (
                f"a step with the smallest chunk ({MIN_CHUNK_TOKENS} tokens) takes {self.chunk_s:.3f} s here"
            )
        return None


@dataclass(frozen=True, slots=True)
class Bound:
    """What keeps the pause from being smaller, and the change that would help."""

    reason: str
    help: str


IMPOSSIBLE_HELP = (
    "allow a longer pause, use a smaller or more quantised model or a faster machine, or lower "
    "max_running_requests so that fewer streams share a step"
)


def floor_of(costs: CostModel, decode_s: float, model: ModelInfo, rows: int) -> Floor:
    """The floor by the fitted costs.

    Args:
        decode_s: measured.
        rows: streams at the same time.
    """
    prompt = Unread("", 0, layering.MOST_TOKENS, waited_s=0.0)
    layered = layering.begin(prompt, MIN_CHUNK_TOKENS, model)
    reading = Work.of_prefill([PrefillChunk("", 0, MIN_CHUNK_TOKENS, False, layered)])
    if layering.shares_pass(model):
        beside = dataclasses.replace(reading, decode_rows=rows)
        return Floor(decode_s, max(decode_s, costs.seconds(beside)))
    return Floor(decode_s, decode_s + costs.seconds(reading))


def bound_of(
    smallest: Outcome, floor: Floor, slo_pause_s: float, predicted_s: float | None, hopeful: bool = True
) -> Bound:
    """What bounds the config with the smallest pause.

    Args:
        predicted_s: the simulator's pause for it, corrected.
        hopeful: some other config may pause less, for all that is known.
    """
    if why := floor.verdict(slo_pause_s):
        return Bound(why, IMPOSSIBLE_HELP)
    if smallest.shed_rate > _OVERLOAD_LOST:
        return Bound(
            f"more arrives than this machine carries: {smallest.shed_rate:.0%} of the requests were refused",
            "send less at once, or add a machine",
        )
    pause_s = smallest.worst_pause_s or 0.0
    if predicted_s and pause_s > _UNEXPLAINED * predicted_s:
        return Bound(
            f"the scheduler's own steps explain only {predicted_s:.2f} s of the {pause_s:.2f} s: something "
            "else held up the machine",
            "close other programs on it and run the study again",
        )
    if _reads_least(smallest.config):
        return Bound(
            "even the smallest chunks, deep in a long prompt, take that long beside the streams",
            "shorten the longest prompts, or allow a longer pause",
        )
    if hopeful:
        return Bound("nothing that reads less at a time was tried", "give it more time (--budget)")
    return Bound(
        "many streams share each step: a decode step grows with the streams and their lengths",
        "lower max_running_requests, or allow a longer pause",
    )


def unfair_bound(price: Score) -> Bound:
    """Why a config that keeps the SLO was not taken."""
    if price.lost > 0.0:
        return Bound(
            "what keeps it refuses or loses more requests than chunking off does",
            "send less at once, add a machine, or allow a longer pause",
        )
    return Bound(
        "what keeps it has short requests wait much longer than chunking off does",
        "send less at once, or allow a longer pause",
    )


def _reads_least(config: SchedulerConfig) -> bool:
    is_fixed = config.prefill_policy is PrefillPolicy.FIXED
    return is_fixed and config.prefill_chunk_tokens <= 2 * MIN_CHUNK_TOKENS
