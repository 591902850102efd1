"""A config on loan: given up when nobody asks for it any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from engine.core.json_text import shown
from engine.server.errors import ApiError

_MAX_LEASE_S = 86_400.0


class Timer(Protocol):
    """What `loop.call_later` gives."""

    def cancel(self) -> None: ...


class Lease:
    """Counts down, and starts again at each renewal.

    Args:
        call_later: the event loop's.
        on_end: called once the time of the latest renewal is over.
    """

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], Timer], on_end: Callable[[], None]
    ) -> None:
        self._call_later = call_later
        self._on_end = on_end
        self._timer: Timer | None = None

    def renew(self, seconds: float) -> None:
        """From now on, this much time is left."""
        self.cancel()
        self._timer = self._call_later(seconds, self._on_end)

    def cancel(self) -> None:
        """Nothing is on loan."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


def lease_seconds(value: Any) -> float:
    """How long a lease may last, from what a client says. Raises: ApiError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_LEASE_S:
        message = f"lease_s must be seconds above 0 and up to {_MAX_LEASE_S:.0f}, not {shown(value)}"
        raise ApiError(400, message, code="invalid_value")
    return float(value)
