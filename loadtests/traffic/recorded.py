"""A trace that was read whole, to be replayed more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.core.errors import TraceError
from engine.core.trace import TraceRow
from loadtests.traces.files import open_trace
from loadtests.traffic.replay import ReplayOptions, schedule_from_trace
from loadtests.traffic.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace that was read.

    Attributes:
        block_tokens: tokens per prefix block of its rows.
        by_end: its rows lie in the order of their ends.
        notes: what its reader made up or left out, one line each.
    """

    rows: Sequence[TraceRow]
    block_tokens: int
    by_end: bool = False
    notes: tuple[str, ...] = ()

    @property
    def first_s(self) -> float:
        """The earliest instant, in the trace's own seconds."""
        return min(row.t for row in self.rows)

    def schedule(self, seed: int, options: ReplayOptions, name: str) -> Schedule:
        """Its replay. Raises: TraceError: nothing is left to replay."""
        return schedule_from_trace(
            self.rows,
            seed,
            options,
            name=name,
            block_tokens=self.block_tokens,
            by_end=self.by_end,
            read_notes=self.notes,
        )


def read_recorded(path: Path | str) -> Recorded:
    """Reads a trace of any known format.

    Raises:
        TraceError: it cannot be read, or holds no request.
    """
    trace = open_trace(path)
    rows = tuple(trace.rows)
    if not rows:
        raise TraceError(f"{path}: the trace holds no request")
    return Recorded(rows, trace.header.block, trace.by_end, trace.notes.lines)
