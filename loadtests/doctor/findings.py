"""What is wrong with a trace, and what is done about it: by the fixes that replay and conversion share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadtests.doctor.columns import NOBODY, Columns
from loadtests.doctor.figures import Arrivals
from loadtests.traces.fixes import ClockFaults

_MIN_ROWS = 100  # fewer say nothing about a unit
_TOO_FAST_PER_S = 1000.0
_TOO_SLOW_S = 600.0  # between two requests, all stamped in whole numbers
_LATE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault.

    Attributes:
        kind: for programs.
        rows: how many are at fault.
        what: is wrong, a sentence that starts with the number of rows.
        fix: what becomes of it.
        unasked: every replay applies the fix; otherwise it says what to ask for.
    """

    kind: str
    rows: int
    what: str
    fix: str
    unasked: bool = True


def find(
    columns: Columns, faults: ClockFaults, arrivals: Arrivals, context: int | None, seed: int
) -> tuple[Finding, ...]:
    """All that is wrong, in the order in which it is mended.

    Args:
        faults: of the usable rows.
        context: tokens that prompt and answer may have together; None is no limit.
    """
    usable = columns.usable
    found = [
        *_unusable(columns),
        *_clock(columns.t[usable], faults, seed),
        *_unit(columns.t[usable], arrivals),
        *_silences(arrivals),
        *_names(columns),
        *_context(columns, context),
    ]
    return tuple(finding for finding in found if finding.rows)


def _unusable(columns: Columns) -> Iterator[Finding]:
    failed = int((~columns.usable).sum())
    yield Finding(
        "failed", failed, f"{failed:,} requests had no prompt or no answer", "replay leaves them out"
    )


def _clock(t: np.ndarray, faults: ClockFaults, seed: int) -> Iterator[Finding]:
    if faults.mixed_units:
        yield Finding(
            "mixed-units",
            len(t),
            "some time stamps are milliseconds among seconds",
            "divided by 1000 where that lies nearer to the row before, then sorted by time",
        )
    else:
        late = 0 if faults.by_end else faults.num_late
        yield Finding(
            "unsorted", late, f"{late:,} requests are stamped earlier than one before them", "sorted by time"
        )
    if faults.step_s:
        coarse = int((t % faults.step_s == 0).sum())
        step = "whole seconds" if faults.step_s == 1 else f"steps of {faults.step_s} s"
        fix = f"spread evenly at random within each, in their order (seed {seed})"
        yield Finding("quantised", coarse, f"{coarse:,} time stamps are {step}", fix)


def _unit(t: np.ndarray, arrivals: Arrivals) -> Iterator[Finding]:
    """A whole file in the wrong unit; nothing in it proves that, so nobody is to change it unasked."""
    n, rate = len(t), arrivals.rate_per_s or 0.0
    if n >= _MIN_ROWS and rate > _TOO_FAST_PER_S:
        what = f"{rate:,.0f} requests a second: are the stamps seconds where milliseconds belong?"
        yield Finding("unit", n, what, "if so: tuner trace convert --speed 0.001", unasked=False)
    if n >= _MIN_ROWS and 0 < rate < 1 / _TOO_SLOW_S and bool((t == np.floor(t)).all()):
        what = f"{1 / rate:,.0f} s between requests: are the stamps milliseconds where seconds belong?"
        yield Finding("unit", n, what, "if so: tuner trace convert --speed 1000", unasked=False)
    if arrivals.first_s > _LATE_S:
        what = f"the first request comes at {arrivals.first_s:,.0f} s of the trace's own time"
        fix = f"tuner trace convert --from {int(arrivals.first_s)}s"
        yield Finding("late-start", n, what, fix, unasked=False)


def _silences(arrivals: Arrivals) -> Iterator[Finding]:
    dead, longest_s = arrivals.dead_minutes, arrivals.longest_silence_s
    what = f"{dead:,} minutes are dead, the longest silence lasts {longest_s:,.0f} s"
    fix = "replay waits through them; tuner trace convert --max-idle 60s shortens them"
    yield Finding("dead-minutes", arrivals.silences, what, fix, unasked=False)


def _names(columns: Columns) -> Iterator[Finding]:
    again = len(columns.ids) - len(np.unique(columns.ids))
    yield Finding(
        "duplicate-ids",
        again,
        f"{again:,} requests have the id of an earlier one",
        "renamed to id~2, id~3, …",
    )
    follows = columns.after != NOBODY
    lost = int((~np.isin(columns.after[follows], columns.ids)).sum())
    what = f"{lost:,} turns follow one that is not here"
    yield Finding("lost-turns", lost, what, "sent at their own time, without waiting for it")


def _context(columns: Columns, context: int | None) -> Iterator[Finding]:
    if context is not None:
        beyond = int((columns.prompt + columns.output > context).sum())
        what = f"{beyond:,} requests need more than {context:,} tokens with their answers"
        fix = "answers cut to half of that, then prompts to what is left"
        yield Finding("beyond-context", beyond, what, fix)
