"""What a stream's user is promised, and how durations are read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

_FORMS = "a duration is a positive number with a unit, like 500ms, 0.5s or 2m"
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(ms|s|m|h)")


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits on what a client sees, in seconds; a TTFT limit of None promises nothing.

    Attributes:
        pause_s: no gap between two content events of a stream is longer.
        ttft_long_s: first token of a long request.
        ttft_short_s: first token of every other request.
    """

    pause_s: float
    ttft_long_s: float | None = None
    ttft_short_s: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"pause_s": self.pause_s, "ttft_long_s": self.ttft_long_s, "ttft_short_s": self.ttft_short_s}


@dataclass(frozen=True, slots=True)
class SloClass:
    """What the requests of one class are promised.

    Attributes:
        ttft_s: None promises nothing.
        pause_s: None is the run's own limit.
    """

    name: str
    ttft_s: float | None = None
    pause_s: float | None = None

    def slo(self, pause_s: float) -> Slo:
        """Its limits, `pause_s` where it has none of its own."""
        return Slo(pause_s if self.pause_s is None else self.pause_s, self.ttft_s, self.ttft_s)


def micros(seconds: float | None) -> float | None:
    """To the microsecond, as recordings have it: more is noise, and makes rows long."""
    return None if seconds is None else round(seconds, 6)


def parse_duration(text: str) -> float:
    """Seconds of "500ms", "0.5s", "2m" or "1h".

    Raises:
        ValueError: another form, zero, or too large for a number; the message names the forms.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not 0.0 < seconds < math.inf:
        raise ValueError(f"{text!r} is not a duration: {_FORMS}")
    return seconds
