"""What happened to one request, when, and what made it wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum


class PauseKind(StrEnum):
    """What a streaming pause was spent on."""

    PREFILL = "prefill"
    DECODE = "decode"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class PauseCause:
    """The piece of work that took most of a pause.

    Attributes:
        request_ids: whose chunks they were; empty unless `kind` is prefill.
        duration_s: of that piece alone; the pause may hold more.
    """

    step: int
    kind: PauseKind
    duration_s: float
    request_ids: tuple[str, ...] = ()
    prefill_tokens: int = 0
    decode_rows: int = 0


@dataclass(slots=True)
class Timeline:
    """Instants of one request on the engine's clock, seconds; None until they happen."""

    arrived_at_s: float
    generation: int
    started_at_s: float | None = None
    first_token_at_s: float | None = None
    last_token_at_s: float | None = None
    ended_at_s: float | None = None
    num_chunks: int = 0
    cached_tokens: int = 0
    num_output_tokens: int = 0
    worst_pause_s: float | None = None
    worst_pause_cause: PauseCause | None = None

    def on_token(self, at_s: float, log: PauseLog) -> None:
        """Notes one more token, and with `log`'s help what the gap before it was spent on."""
        self.num_output_tokens += 1
        previous, self.last_token_at_s = self.last_token_at_s, at_s
        if previous is None:
            self.first_token_at_s = at_s
        elif self.worst_pause_s is None or at_s - previous > self.worst_pause_s:
            self.worst_pause_s = at_s - previous
            self.worst_pause_cause = log.explain(previous)

    @property
    def queue_s(self) -> float | None:
        return None if self.started_at_s is None else self.started_at_s - self.arrived_at_s

    @property
    def prefill_s(self) -> float | None:
        """From the start of reading to the first token."""
        if self.started_at_s is None or self.first_token_at_s is None:
            return None
        return self.first_token_at_s - self.started_at_s

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_at_s is None else self.first_token_at_s - self.arrived_at_s


class PauseLog:
    """Remembers the latest pieces of work, to say which of them a pause was spent on."""

    def __init__(self, remember: int = 64) -> None:
        self._causes: deque[tuple[float, PauseCause]] = deque(maxlen=remember)

    def note(self, ended_at_s: float, cause: PauseCause) -> None:
        self._causes.append((ended_at_s, cause))

    def explain(self, since_s: float) -> PauseCause | None:
        """The longest piece of work that ended after `since_s`."""
        longest: PauseCause | None = None
        # From the latest on, and mostly no further: this is asked of every row whose step was its longest.
        for ended_at_s, cause in reversed(self._causes):
            if ended_at_s <= since_s:
                break
            if longest is None or cause.duration_s > longest.duration_s:
                longest = cause
        return longest
