"""When each request is to be sent, worked out before the run: seeded, absolute, the same for every config.

The same seed gives the same requests at the same times whatever the server does, so that two configs
are compared on common random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.core.slo import SloClass

_TYPICAL_BATCH = 4  # streams that share a decode step when load is turned into requests
_CONTEXT_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Sizing:
    """What the target can do, measured once per study; sizes what a profile leaves `auto`.

    Attributes:
        prefill_tokens_per_s: reading one long prompt unchunked with nobody else there.
        decode_step_s: one decode step with a few streams.
        context_tokens: prompt and output together.
        slo_pause_s: the pause SLO the traffic is to put under stress.
    """

    prefill_tokens_per_s: float
    decode_step_s: float
    context_tokens: int
    slo_pause_s: float

    @property
    def usable_context_tokens(self) -> int:
        """What prompt and output may fill: a chat template, or one token counted wrong, must still fit."""
        return int(self.context_tokens * _CONTEXT_SHARE)

    def seconds(self, uncached_tokens: float, output_tokens: float) -> float:
        """Of the device, that a request costs among a few others."""
        prefill_s = uncached_tokens / self.prefill_tokens_per_s
        return prefill_s + output_tokens * self.decode_step_s / _TYPICAL_BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRequest:
    """One request to send.

    Attributes:
        at_s: from the run's start.
        prompt_seed: seeds the prompt's text; equal seeds and lengths give equal prompts.
        kind: the profile's group, or "trace".
        slo_class: of the schedule's classes; empty when it has none.
        measured: arrives in the measured window (not in the warm-up).
        prefix: names of the prompt's blocks, from the front; equal names give equal tokens, and the last one
            may be partial.
        prefix_block_tokens: tokens per block of `prefix`.
        cancel_s: the client leaves this long after sending.
        after: id of the turn before, which this one continues.
        think_s: sent so long after the end of `after` instead of at `at_s`; None when it is not.
        retries: how often it is sent again when it is refused, each time after the server's `Retry-After`.
    """

    id: str
    at_s: float
    prompt_tokens: int
    max_tokens: int
    prompt_seed: int
    kind: str = ""
    slo_class: str = ""
    measured: bool = True
    prefix: tuple[str, ...] = ()
    prefix_block_tokens: int = 0
    cancel_s: float | None = None
    priority: int = 0
    user: str | None = None
    session: str | None = None
    after: str | None = None
    think_s: float | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Requests in order of `at_s`.

    Attributes:
        duration_s: from the run's start to the end of arrivals.
        grace_s: how long requests in flight may drain after that.
        classes: what the requests of each class are promised.
        notes: what the reader of a result should know of the sizing, one line each.
    """

    name: str
    seed: int
    requests: tuple[ScheduledRequest, ...]
    duration_s: float
    grace_s: float
    long_prompt_tokens: int
    classes: tuple[SloClass, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_measured(self) -> int:
        return sum(request.measured for request in self.requests)


def uncached_tokens(requests: Iterable[ScheduledRequest]) -> Iterator[int]:
    """Of each prompt, what is left when every block that came before is held."""
    seen: set[str] = set()
    for request in requests:
        known = sum(name in seen for name in request.prefix)
        seen.update(request.prefix)
        yield max(0, request.prompt_tokens - known * request.prefix_block_tokens)
