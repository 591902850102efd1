"""The port through which a study says how it is getting on."""

from __future__ import annotations

from typing import Protocol


class Announcer(Protocol):
    """Tells a person; what it is told changes nothing."""

    def doing(self, text: str) -> None:
        """Something begins that may take seconds."""

    def done(self, text: str, detail: str = "") -> None:
        """It came to its end."""

    def warn(self, text: str) -> None:
        """Something the reader should know, with what to do about it."""

    def searching(self, done: int, total: int, best: str, left_s: float) -> None:
        """Where the live search stands; `left_s` is an estimate for the whole study."""


class Silence:
    """An announcer nobody listens to."""

    def doing(self, text: str) -> None: ...

    def done(self, text: str, detail: str = "") -> None: ...

    def warn(self, text: str) -> None: ...

    def searching(self, done: int, total: int, best: str, left_s: float) -> None: ...
