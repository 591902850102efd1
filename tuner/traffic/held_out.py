"""Which part of a recorded trace is searched on, and which is kept for the confirmation.

A trace longer than one run has later windows: every second one is held out, without the sessions that the
search met. Of a trace that one run plays whole, every second session is. So a winner is confirmed on people
whom no searched run has served.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from engine.core.trace import TraceRow
from loadtests.traffic.recorded import Recorded

# A later window is of use when it has this share of the first one's requests.
_LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Part:
    """What one run replays: these rows, from an instant on (in the trace's own seconds)."""

    recorded: Recorded
    start_s: float


class HeldOut:
    """A trace in two parts.

    Args:
        window_s: of the trace, that one run replays.
    """

    def __init__(self, recorded: Recorded, window_s: float) -> None:
        self._recorded = recorded
        self._window_s = window_s

    def searched(self, index: int) -> Part:
        """A window for the search; 0 is the one that its live runs play, others are simulated."""
        starts = [self._first_s, *self._later[1::2]]
        rows = self._split(0) if self._is_split else self._recorded.rows
        return self._part(rows, starts[index % len(starts)])

    def confirmed(self, index: int) -> Part:
        """A window for the confirmation."""
        if self._is_split:
            return self._part(self._split(1), self._first_s)
        starts = self._later[::2]
        return self._part(self._unmet, starts[index % len(starts)])

    @property
    def num_windows(self) -> int:
        """Different windows for the confirmation; 0 when it plays what the search played."""
        return int(self._can_split) if self._is_split else len(self._later[::2])

    @property
    def note(self) -> str:
        """What is held out, in words; a warning where nothing can be."""
        if not self._is_split:
            return f"confirmed on {len(self._later[::2])} later windows, without the sessions of the first"
        if self._can_split:
            return (
                "the trace is no longer than a run: searched on half of its sessions, confirmed on the others"
            )
        return "the trace is one session: it is confirmed on the very requests that it is searched on"

    # -- windows ---------------------------------------------------------------------------------------

    @property
    def _first_s(self) -> float:
        return self._recorded.first_s

    @cached_property
    def _met(self) -> set[str]:
        return {_session(row) for row in self._own}

    @cached_property
    def _unmet(self) -> tuple[TraceRow, ...]:
        return tuple(row for row in self._recorded.rows if _session(row) not in self._met)

    @cached_property
    def _later(self) -> list[float]:
        """Starts of the later windows that are busy enough."""
        least = _LEAST_SHARE * len(self._own)
        counts: dict[int, int] = {}
        for row in self._unmet:
            number = int((row.t - self._first_s) / self._window_s)
            counts[number] = counts.get(number, 0) + 1
        busy = sorted(number for number, count in counts.items() if number and count >= least)
        return [self._first_s + number * self._window_s for number in busy]

    @cached_property
    def _own(self) -> list[TraceRow]:
        """What the first window holds."""
        return [row for row in self._recorded.rows if row.t < self._first_s + self._window_s]

    # -- sessions --------------------------------------------------------------------------------------

    @property
    def _is_split(self) -> bool:
        return not self._later

    @cached_property
    def _can_split(self) -> bool:
        return {_half(row) for row in self._own} == {0, 1}

    def _split(self, half: int) -> Sequence[TraceRow]:
        if not self._can_split:
            return self._recorded.rows
        return tuple(row for row in self._recorded.rows if _half(row) == half)

    def _part(self, rows: Sequence[TraceRow], start_s: float) -> Part:
        return Part(dataclasses.replace(self._recorded, rows=rows), start_s)


def _session(row: TraceRow) -> str:
    """Whose request it is, as far as the trace says."""
    return row.session or row.user or row.id


def _half(row: TraceRow) -> int:
    return hashlib.sha256(_session(row).encode()).digest()[0] % 2
