"""The server that a command works on: somebody's, or one of our own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.announce import Announcer
from tuner.evaluation.live import LiveServer
from tuner.preflight import connect
from tuner.server.engine_client import EngineClient, Keys
from tuner.server.own_engine import own_engine


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which server.

    Attributes:
        url: None starts an own engine with `model` on `backend`.
    """

    url: str | None
    model: str | None = None
    backend: str = "mlx"
    keys: Keys = Keys()

    def connect(self) -> EngineClient | None:
        """A checked connection to somebody's engine; None when an own one is wanted. Raises: EngineError."""
        return connect(self.url, self.keys) if self.url else None

    def warn_of_model(self, served: str, announcer: Announcer) -> None:
        """Says so when a running engine serves another model than the one that was named."""
        if self.model is not None and self.model != served:
            announcer.warn(
                f"{self.url} serves {served}, and that is tuned; --model is for engines started here"
            )

    def arguments(self) -> list[str]:
        """Of `engine serve`, for an own engine."""
        return ["--backend", self.backend, *(["--model", self.model] if self.model else [])]


@contextlib.contextmanager
def serving(choice: EngineChoice, client: EngineClient | None, announcer: Announcer) -> Iterator[LiveServer]:
    """The server while the block runs; an own one is stopped at its end.

    Args:
        client: what `choice.connect` gave, so that a wrong URL is found out before anything else is done.

    Raises:
        EngineError: an own engine does not start.
    """
    if client is not None:
        with contextlib.closing(client):
            choice.warn_of_model(client.model()[0], announcer)
            yield LiveServer(client)
        return
    announcer.doing("starting an engine")
    with own_engine(choice.arguments()) as process, contextlib.closing(EngineClient(process.url)) as own:
        announcer.done("engine started", process.url)
        yield LiveServer(own, process)
