"""The port behind which device work happens.

Work on a device is launched and waited for apart, so that the host can prepare the next step while
the device runs this one. `engine.core.pipeline` decides when to wait; an executor only obeys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from engine.core.plan import Keep, PrefillChunk, Restore
from engine.core.request import Request


@dataclass(frozen=True, slots=True)
class CheckpointSizes:
    """What a snapshot of a request's caches takes.

    Attributes:
        token_bytes: a token's, in the layers that keep every token.
        windows: (tokens, bytes a token) of the layers that keep the latest tokens only.
        state_bytes: of recurrent layers, however many tokens were read.
        capacity_bytes: what this machine's memory has room for.
    """

    token_bytes: int
    windows: tuple[tuple[int, int], ...] = ()
    state_bytes: int = 0
    capacity_bytes: int = 0

    @property
    def divisible(self) -> bool:
        """Whether every layer keeps every token, so that a snapshot holds each shorter prefix too."""
        return not self.windows and not self.state_bytes

    def num_bytes(self, start: int, end: int) -> int:
        """Bytes of a snapshot at `end` tokens that builds on another at `start` tokens."""
        latest = sum(min(end, tokens) * token_bytes for tokens, token_bytes in self.windows)
        return (end - start) * self.token_bytes + latest + self.state_bytes


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the scheduler and the server must know of a loaded model.

    Attributes:
        context_tokens: prompt and output together.
        kv_capacity_tokens: tokens of KV that fit this machine's memory beside the weights.
        checkpoints: what snapshots of its caches take; None when they cannot be taken.
        one_pass: a step's rows and chunks go through the model together, so that its weights are read once
            for both; otherwise the rows cost a pass of their own.
        batches: rows that write share that pass; otherwise each has one of its own.
        kv_block_tokens: KV is allocated in blocks of so many tokens.
        runs_ahead: `Executor.launch` returns at once, so that the host can be a step ahead of the device;
            otherwise it may block until the work is done.
        chunk_grid_tokens: a device that prepares itself for each new shape does so less often for chunks that
            are multiples of it; 1 where any length is as good.
        num_layers: a pass can be halted between them; 1 when it cannot be.
    """

    name: str
    context_tokens: int
    kv_capacity_tokens: int
    checkpoints: CheckpointSizes | None = None
    one_pass: bool = True
    batches: bool = True
    kv_block_tokens: int = 1
    runs_ahead: bool = True
    chunk_grid_tokens: int = 1
    num_layers: int = 1

    def kv_tokens(self, request: Request) -> int:
        """KV that is allocated for a request when it has grown to its end."""
        blocks = -(-(request.num_prompt_tokens + request.max_tokens) // self.kv_block_tokens)
        return blocks * self.kv_block_tokens


class Executor(Protocol):
    """A device that reads prompt chunks and writes tokens. One thread uses it, from load to close.

    Steps run in the order they are launched. Results do not depend on how a prompt was cut into chunks, by
    tokens or by layers, or on which rows share a decode step.
    """

    @property
    def info(self) -> ModelInfo: ...

    def start(self, request: Request) -> None:
        """Makes the caches of a new request."""

    def restore(self, restore: Restore) -> None:
        """Fills a new request's caches with the first tokens of a checkpoint, before any chunk of it."""

    def keep(self, keep: Keep) -> None:
        """Takes a checkpoint of a request's caches, as the work launched so far leaves them; no layered pass
        of it is under way.
        """

    def drop(self, checkpoint: int) -> None:
        """Frees a checkpoint; nothing that is kept builds on it. Requests restored from it go on."""

    def release(self, request_id: str) -> None:
        """Frees everything held for the request, launched work included. Unknown ids are ignored."""

    def launch(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...]) -> Any:
        """Launches the beginning of a step, enough to keep the device busy for a while; returns its ticket.

        Each row of `decode` writes one token that follows its last one (launched, perhaps not yet waited
        for). Each chunk extends its request's cache, and samples a first token where it completes the
        prompt. No request is in both.
        """

    def launch_rest(self, ticket: Any) -> None:
        """Launches what is left of a step; called once for each. May block until most of it is done."""

    def wait_nearly(self, ticket: Any) -> None:
        """Blocks until so little of a launched step is left that work launched now reaches the device before
        it runs dry. May return as late as `wait`.
        """

    def wait(self, ticket: Any) -> tuple[int, ...]:
        """Blocks until the launched step is done.

        Returns:
            The tokens of its rows, in order, then the first tokens of the chunks that complete a prompt.
        """

    def close(self) -> None:
        """Drops model and caches and ends device work cleanly."""
