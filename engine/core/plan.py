"""What one step does, as a value: everything an executor does comes from a plan."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.request import Request


@dataclass(frozen=True, slots=True)
class LayeredPass:
    """Tokens `start … start + num_tokens` of one prompt that go through the model together, spread over steps
    by layers instead of by tokens: matrices stay large however little a step does.

    A step's share of it counts in tokens all the same. Positions say how far it has come: at `start` no layer
    is done, at `end` all are, and then all of its tokens are read at once.

    Source: Lee et al., "From Tokens to Layers: Redefining Stall-Free Scheduling for LLM Serving with Layered
    Prefill", 2025.

    Attributes:
        num_layers: at most `num_tokens`, so that every layer ends at a position of its own.
    """

    start: int
    num_tokens: int
    num_layers: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    def layers_at(self, position: int) -> int:
        """Layers that are done there."""
        return ((position - self.start + 1) * self.num_layers - 1) // self.num_tokens

    def halt(self, num_layers: int) -> int:
        """The position where so many layers are done."""
        return self.start + self.num_tokens * min(num_layers, self.num_layers) // self.num_layers

    def last_halt(self, position: int) -> int:
        """Where the last layer ends that does so by `position`."""
        return self.halt(self.layers_at(min(position, self.end)))

    def next_halt(self, position: int) -> int:
        """Where the layer ends that begins at `position`."""
        return self.halt(self.layers_at(position) + 1)


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens `start … start + num_tokens` of one prompt, read in one pass; or so large a share of a layered
    pass, of which chunks follow one another without a gap.

    Attributes:
        completes_prompt: the chunk ends the prompt, so the first output token is sampled from it.
    """

    request_id: str
    start: int
    num_tokens: int
    completes_prompt: bool
    layered: LayeredPass | None = None

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class Restore:
    """The first `num_tokens` tokens of a prompt come from a checkpoint instead of being read."""

    request_id: str
    checkpoint: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Keep:
    """A checkpoint to take of the first `num_tokens` tokens of a prompt.

    Attributes:
        checkpoint: its id, never used before.
        parent: the checkpoint that holds the first `start` of them; None when `start` is 0.
    """

    request_id: str
    checkpoint: int
    start: int
    num_tokens: int
    parent: int | None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, carried out in the order of the fields.

    Attributes:
        release: rows to free (ended or aborted since the last plan).
        start: requests whose caches are to be made; their chunks follow in this or later plans.
        restore: rows whose reading begins in this step, after a prefix that a checkpoint holds.
        drop: checkpoints to free.
        decode: rows that write one token each.
        prefill: chunks to read; their total is the step's prefill budget at most, or a layer of a pass that
            began under a larger one.
        keep: checkpoints to take.
    """

    step: int
    generation: int
    release: tuple[str, ...] = ()
    start: tuple[Request, ...] = ()
    restore: tuple[Restore, ...] = ()
    drop: tuple[int, ...] = ()
    decode: tuple[str, ...] = ()
    prefill: tuple[PrefillChunk, ...] = ()
    keep: tuple[Keep, ...] = ()
