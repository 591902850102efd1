"""The algorithm of the door: may this request come in, given what is already inside?

Deciding is pure; the scheduler enforces the answer, and the server puts it into HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.core.config import SchedulerConfig
from engine.core.executor import ModelInfo
from engine.core.request import Request


class RefusalCode(StrEnum):
    """Why a request was turned away."""

    CONTEXT_LENGTH = "context_length_exceeded"
    KV_BUDGET = "kv_budget_exceeded"
    QUEUE_FULL = "queue_full"
    PREFILL_BACKLOG = "prefill_backlog"
    QUEUE_WAIT = "queue_wait"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal, as a value.

    Attributes:
        retry_after_s: predicted time until the cause is gone; None when waiting cannot help.
        room_tokens: the longest answer that would fit, where waiting cannot help; below 1 when not even the
            prompt does.
    """

    code: RefusalCode
    message: str
    retry_after_s: float | None = None
    room_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request is inside; it will end in exactly one terminal event."""

    predicted_ttft_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """What is inside already.

    Attributes:
        num_waiting, waiting_prefill_tokens: of the queue beyond those that the next step starts.
        unread_s: predicted time to read every prompt inside, decode steps in between included.
        slot_wait_s: predicted time until a running slot and its KV are free; 0 when they are.
        is_guess: nothing is known yet of what work costs here, so nobody is refused for a predicted time.
    """

    num_waiting: int
    waiting_prefill_tokens: int
    unread_s: float
    slot_wait_s: float
    is_guess: bool = False


def decide(
    request: Request,
    load: Load,
    own_prefill_s: float,
    config: SchedulerConfig,
    model: ModelInfo,
    num_cached: int = 0,
) -> Admitted | Refused:
    """Admit or refuse.

    Args:
        num_cached: prompt tokens that probably need not be read.
        own_prefill_s: predicted time to read this prompt under the config in force.
    """
    own_tokens = request.num_prompt_tokens - num_cached
    return _never_fits(request, config, model) or _overloaded(own_tokens, load, own_prefill_s, config)


def kv_budget_tokens(config: SchedulerConfig, model: ModelInfo) -> int:
    """Tokens of KV that may be promised."""
    return config.kv_budget_tokens or model.kv_capacity_tokens


def _never_fits(request: Request, config: SchedulerConfig, model: ModelInfo) -> Refused | None:
    needed = f"{request.num_prompt_tokens} prompt tokens and {request.max_tokens} for the answer"
    context = model.context_tokens
    if request.num_prompt_tokens + request.max_tokens > context:
        message = f"{needed} do not fit the model's context of {context} tokens"
        room = context - request.num_prompt_tokens
        return Refused(RefusalCode.CONTEXT_LENGTH, message, room_tokens=room)
    budget = kv_budget_tokens(config, model)
    if model.kv_tokens(request) > budget:
        message = f"{needed} do not fit the KV budget of {budget} tokens (kv_budget_tokens)"
        room = budget // model.kv_block_tokens * model.kv_block_tokens - request.num_prompt_tokens
        return Refused(RefusalCode.KV_BUDGET, message, room_tokens=room)
    return None


def _overloaded(
    own_tokens: int, load: Load, own_prefill_s: float, config: SchedulerConfig
) -> Admitted | Refused:
    drain_s = load.unread_s + load.slot_wait_s
    must_wait = load.slot_wait_s > 0 or load.num_waiting > 0
    if must_wait and load.num_waiting >= config.max_waiting_requests:
        message = f"{load.num_waiting} requests are waiting already; try again later"
        return Refused(RefusalCode.QUEUE_FULL, message, drain_s)
    queued = load.waiting_prefill_tokens + own_tokens
    if must_wait and queued > config.max_waiting_prefill_tokens:
        message = f"{load.waiting_prefill_tokens} prompt tokens are waiting already; try again later"
        return Refused(RefusalCode.PREFILL_BACKLOG, message, drain_s)
    ttft_s = drain_s + own_prefill_s
    if drain_s > 0 and ttft_s > config.max_queue_wait_s and not load.is_guess:
        message = f"the first token would take about {ttft_s:.0f} s; try again later"
        return Refused(RefusalCode.QUEUE_WAIT, message, drain_s)
    return Admitted(ttft_s)
