"""The port behind which device work happens.

Work on a device is launched and waited for apart, so that the host can prepare the next step while
the device runs this one. `engine.core.pipeline` decides when to wait; an executor only obeys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from engine.core.plan import PrefillChunk
from engine.core.request import Request


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the scheduler and the server must know of a loaded model.

    Attributes:
        context_tokens: prompt and output together.
        kv_capacity_tokens: tokens of KV that fit this machine's memory beside the weights.
    """

    name: str
    context_tokens: int
    kv_capacity_tokens: int


class Executor(Protocol):
    """A device that reads prompt chunks and writes tokens. One thread uses it, from load to close.

    Launches run in launch order. Results do not depend on how a prompt was cut into chunks or on
    which rows share a decode step.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def runs_ahead(self) -> bool:
        """Whether a launch returns at once, so that the host can be a step ahead of the device. Otherwise
        it may block until the launch before is done.
        """

    def start(self, request: Request) -> None:
        """Makes the caches of a new request."""

    def release(self, request_id: str) -> None:
        """Frees everything held for the request, launched work included. Unknown ids are ignored."""

    def launch_decode(self, request_ids: tuple[str, ...]) -> Any:
        """Writes one token for each row, each following the row's last token (launched, perhaps not
        yet waited for). Returns a ticket for `wait`.
        """

    def launch_prefill(self, chunks: tuple[PrefillChunk, ...]) -> Any:
        """Extends each chunk's cache; samples a first token where a chunk completes its prompt.
        Returns a ticket for `wait`.
        """

    def wait_nearly(self, ticket: Any) -> None:
        """Blocks until so little of a launched prefill is left that work launched now reaches the device
        before it runs dry. May return as late as `wait`.
        """

    def wait(self, ticket: Any) -> tuple[int, ...]:
        """Blocks until the launched work is done.

        Returns:
            A decode's tokens in the order of its rows, or a prefill's first tokens in the order of the
            chunks that complete a prompt.
        """

    def close(self) -> None:
        """Drops model and caches and ends device work cleanly."""
