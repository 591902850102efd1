"""What a client saw of one request: the raw material of every number we print.

The live load test and the simulator both produce these; `engine.core.report` computes from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, overload


class Outcome(StrEnum):
    """How a scheduled request ended for its client; exactly one each."""

    COMPLETED = "completed"  # a finish reason arrived
    REFUSED = "refused"  # finally refused (429, 503), retries included
    FAILED = "failed"  # an error, or a stream cut before its finish reason
    CANCELLED = "cancelled"  # the client left, as the schedule wanted it to
    UNFINISHED = "unfinished"  # still running when the drain's grace period ended
    NEVER_SENT = "never_sent"  # the client never wrote it


# Never served: their TTFT counts as infinite, so that admission control cannot win by refusing.
LOST = (Outcome.REFUSED, Outcome.FAILED, Outcome.NEVER_SENT)


@dataclass(frozen=True, slots=True)
class ContentEvent:
    """An SSE event that carried output.

    Attributes:
        at_s: when the client read its bytes.
        num_tokens: output tokens the event carried; 0 when it only held text kept back before.
        emitted_at_s: the engine's own stamp on the engine's clock; None when the server sends none.
            Only differences of it are used.
    """

    at_s: float
    num_tokens: int
    emitted_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tokens(Sequence[ContentEvent]):
    """Events of one token each, read when they were emitted: an hour of traffic has millions of them, so
    they are kept as their instants.
    """

    at_s: Sequence[float]

    def __len__(self) -> int:
        return len(self.at_s)

    @overload
    def __getitem__(self, index: int) -> ContentEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Tokens: ...
    def __getitem__(self, index: int | slice) -> ContentEvent | Tokens:
        if isinstance(index, slice):
            return Tokens(self.at_s[index])
        return ContentEvent(self.at_s[index], 1, self.at_s[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One scheduled request. Instants are seconds from the run's start on the client's clock.

    Attributes:
        planned_prompt_tokens: what the schedule asked for; `prompt_tokens` is what the server counted.
        sent_at_s: None when never sent.
        ended_at_s: last byte, refusal, failure, or the end of the drain.
        resent_at_s: when the last retry after a 429 or 503 was written; None when there was none.
        generation: the config generation the response carried.
        measured: scheduled within the measured window (not warm-up).
        kind: which group of the profile the request belongs to.
        slo_class: of the profile's classes; empty when it has none.
        timings: what the engine said of the request in its last event, as it came.
    """

    id: str
    scheduled_at_s: float
    planned_prompt_tokens: int
    max_tokens: int
    outcome: Outcome
    ended_at_s: float
    sent_at_s: float | None = None
    events: Sequence[ContentEvent] = ()
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int = 0
    http_status: int | None = None
    generation: int | None = None
    error: str | None = None
    measured: bool = True
    kind: str = ""
    slo_class: str = ""
    resent_at_s: float | None = None
    timings: Mapping[str, Any] | None = None
