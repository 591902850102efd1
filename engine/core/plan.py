"""What one step does, as a value: everything an executor does comes from a plan."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.request import Request


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens `start … start + num_tokens` of one prompt, read in one pass.

    Attributes:
        completes_prompt: the chunk ends the prompt, so the first output token is sampled from it.
    """

    request_id: str
    start: int
    num_tokens: int
    completes_prompt: bool


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
        prefill: chunks to read; their total is the step's prefill budget at most.
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
