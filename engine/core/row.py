"""A request inside the scheduler, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core.digests import PromptDigests
from engine.core.plan import LayeredPass, PrefillChunk
from engine.core.prefix_index import Hit
from engine.core.request import Request
from engine.core.timeline import Timeline


@dataclass(slots=True, eq=False)
class Row:
    """Counts include what is launched but not settled.

    Attributes:
        digests: None keeps the prompt out of the prefix cache.
        stops: where checkpoints are still to be taken, ascending, and whether others will start from each.
        num_expected: tokens that probably come from the cache; known for certain once reading begins.
        found: what the index said last, and at which version of it.
        last_chunk_step: the step that read its latest chunk; 0 before its first.
        layered: the pass that is under way.
    """

    request: Request
    timeline: Timeline
    num_prefilled: int = 0
    num_sampled: int = 0
    digests: PromptDigests | None = None
    stops: dict[int, bool] = field(default_factory=dict)
    num_expected: int = 0
    found: tuple[int, Hit | None] = (-1, None)
    last_chunk_step: int = 0
    layered: LayeredPass | None = None

    @property
    def num_unread(self) -> int:
        return len(self.request.prompt) - self.num_prefilled  # asked of every row at every step

    @property
    def num_uncached(self) -> int:
        """Tokens that will probably have to be read."""
        return self.request.num_prompt_tokens - self.num_done

    @property
    def num_done(self) -> int:
        """Tokens that are read, or probably need not be."""
        return self.num_prefilled if self.begun else self.num_expected

    @property
    def begun(self) -> bool:
        """Whether reading has begun, so that it is settled what comes from the cache."""
        return self.last_chunk_step > 0

    @property
    def depth(self) -> int:
        return self.num_prefilled + self.num_sampled

    @property
    def may_decode(self) -> bool:
        request = self.request
        return self.num_prefilled == len(request.prompt) and self.num_sampled < request.max_tokens

    def take_chunk(self, chunk: PrefillChunk, step: int, now_s: float) -> None:
        """Counts a chunk that is launched with this step."""
        self.num_prefilled += chunk.num_tokens
        self.layered = chunk.layered if chunk.layered and chunk.end < chunk.layered.end else None
        self.num_sampled += chunk.completes_prompt
        self.last_chunk_step = step
        self.timeline.num_chunks += 1
        if self.timeline.started_at_s is None:
            self.timeline.started_at_s = now_s

    def queue_key(self) -> tuple[int, float]:
        return self.request.priority, self.request.arrived_at_s
