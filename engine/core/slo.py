"""What a stream's user is promised, and how durations are written."""

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


# A reader notices a stop of about a quarter of a second and loses the thread at about one
# (Nielsen, "Usability Engineering", 1993, chapter 5: 0.1 s, 1 s and 10 s).
SLO_CLASSES: dict[str, Slo] = {
    "voice": Slo(0.2),
    "chat": Slo(0.5),
    "background": Slo(2.0),
}


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


def format_duration(seconds: float) -> str:
    """The shortest of the forms `parse_duration` reads, to a microsecond: "80ms", "0.5s", "2m".

    Raises:
        ValueError: not a positive finite number.
    """
    if not 0.0 < seconds < math.inf:
        raise ValueError(f"{seconds!r} is not a duration: {_FORMS}")
    if seconds < 0.1:
        return _plain(max(seconds, 1e-6) * 1000) + "ms"
    if seconds >= 60 and seconds % 60 == 0:
        return _plain(seconds / 60) + "m"
    return _plain(seconds) + "s"


def _plain(value: float) -> str:
    text = f"{value:.6f}"
    return text.rstrip("0").rstrip(".")
