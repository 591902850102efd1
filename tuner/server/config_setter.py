"""Configs on loan from a server that is being tuned, and its own put back at the end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from engine.core.config import SchedulerConfig
from tuner.errors import EngineError, StaleConfigError
from tuner.search_space import describe
from tuner.server.engine_client import EngineClient

# How long a config on trial stays in force when nobody is left to take it back. A process may be held up
# for a minute without losing it.
LEASE_S = 120.0
RENEW_EVERY_S = 20.0
_ENGINE = "engine"  # the author of what an engine changes by itself


class ConfigSetter:
    """Puts one config after another in force, on loan, and remembers the one that was there before, or
    before a run that was killed.

    Each change names the generation it replaces, so a change by anybody else is noticed, not overwritten.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._current = client.config()
        self.original = client.settled_config()
        self._attempted = self.original.config

    def put(self, config: SchedulerConfig, why: str) -> int:
        """The generation under which the config is in force. Raises: StaleConfigError, EngineError."""
        if config == self._current.config and self._client.config() == self._current:
            return self._current.generation
        self._attempted = config
        try:
            self._lend(config, why)
        except StaleConfigError:
            if not self._was_given_up():
                raise
            self._current = self._client.config()
            self._lend(config, why)
        return self._current.generation

    def renew(self) -> None:
        """Keeps what is on loan. Called on a thread of its own; a failure shows in the next change."""
        with contextlib.suppress(EngineError):
            self._client.renew_lease(self._current.generation, LEASE_S)

    def reset(self) -> None:
        """After the server was restarted: its generations count anew."""
        self._current = self._client.config()

    def in_force(self) -> SchedulerConfig:
        """Raises: EngineError: the server does not answer."""
        return self._client.config().config

    def restore(self) -> bool:
        """Puts the original config back; False when somebody else's is in force, which is left alone.

        Raises:
            EngineError: the server does not answer.
        """
        while True:
            now = self._client.config()
            if now.config == self.original.config:
                return True
            ours = now.generation == self._current.generation or now.config == self._attempted
            if not ours:
                return False
            with contextlib.suppress(StaleConfigError):
                why = "tuning is over"
                self._current = self._client.put_config(self.original.config, now.generation, why, keep=True)
                return True

    def _lend(self, config: SchedulerConfig, why: str) -> None:
        lease_s = None if config == self.original.config else LEASE_S
        self._current = self._client.put_config(config, self._current.generation, why, lease_s=lease_s)

    def _was_given_up(self) -> bool:
        """The engine itself went back: this process, or the one before it, was held up or killed."""
        return self._client.config().config == self.original.config and self._client.last_author() == _ENGINE


@contextlib.contextmanager
def restoring(setter: ConfigSetter, warn: Callable[[str], None]) -> Iterator[None]:
    """Keeps what the block puts in force; at its end, whatever it is, the server has its own config back."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(RENEW_EVERY_S):
            setter.renew()

    thread = threading.Thread(target=keep, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        try:
            if not setter.restore():
                now, before = describe(setter.in_force()), describe(setter.original.config)
                left = f"it was left as it is: {now}. Before the trials it was {before}"
                warn(f"somebody else changed the server's config meanwhile; {left}")
        except EngineError as error:
            warn(f"the server's config could not be restored: {error}")
