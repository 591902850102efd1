"""A request as the scheduler sees it: lengths, limits and sampling, never text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """How a request ended; exactly one per request."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn from the logits.

    Attributes:
        temperature: 0 takes the most likely token.
        seed: same seed, prompt and parameters give the same tokens, whatever company the row keeps.
            None draws a fresh one.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to read and up to `max_tokens` tokens to write.

    Attributes:
        prompt: token ids. The simulator, which needs only the length, passes a `range`.
        max_tokens: at least 1; prompt and output together fit the model's context.
        stop_tokens: ids that end the answer; empty when the caller wants `ignore_eos`.
        min_tokens: stop tokens before this many output tokens do not end the answer.
        priority: lower is served first among the waiting.
        boundaries: token counts at which the prompt's parts end (messages, the prompt itself), ascending:
            where another prompt may part from this one. Empty keeps it out of the prefix cache.
    """

    id: str
    prompt: Sequence[int]
    max_tokens: int
    arrived_at_s: float
    stop_tokens: frozenset[int] = frozenset()
    min_tokens: int = 0
    priority: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    boundaries: tuple[int, ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)
