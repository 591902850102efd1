"""What is mended in a trace's rows before they are sent or written, and why.

Each fix takes rows and yields rows; none changes a row in place. What it mended is counted in `Notes`.
Replay, `tuner trace convert` and the trace doctor share them, so that what the doctor announces is what
replay does. `mend` is the part that every replay applies; the rest follows the user's wishes.

Order matters: `drop_failed`, `mend` (units, order, spreading), `crop`, `thin`, `retime`, `unique_ids`,
`link_turns`, `cap_lengths`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

import numpy as np

from engine.core.trace import TraceRow

LONG_SHARE = 0.9  # prompts longer than this share of all count as long, when nothing else was said
_MIN_ROWS = 10  # fewer stamps say nothing about a clock
_COARSE_SHARE = 0.9
_MIXED_SHARE = 0.002  # of neighbours a thousandfold apart; shuffled stamps make about 0.0001
_MS_PER_S = 1000.0
_NEAR_DIGITS = 0.043  # a tenth
_FAR_S = 30.0
_DIGITS = 9  # of computed times: what lies beyond is the arithmetic's

Rows = Iterable[TraceRow]


class Notes:
    """What was mended: one line per kind, in the order in which the first of each was met."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, what: str, number: int = 1) -> None:
        """Adds `number` to a kind; `what` completes the sentence after the number."""
        if number:
            self._counts[what] = self._counts.get(what, 0) + number

    def say(self, line: str) -> None:
        """A line that counts nothing."""
        self._counts[line] = 0

    def add(self, other: Notes) -> None:
        """Takes over all of another's."""
        for what, number in other._counts.items():
            self._counts[what] = self._counts.get(what, 0) + number

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(f"{number} {what}" if number else what for what, number in self._counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFaults:
    """What is wrong with a trace's stamps as a whole.

    Attributes:
        first_s: the earliest stamp.
        num_late: rows stamped earlier than one before them.
        by_end: they lie in the order of their ends, so that being late is no fault.
        mixed_units: some stamps are milliseconds among seconds.
        step_s: nine tenths of the stamps are multiples of this many whole seconds; 0 when they are not.
    """

    first_s: float = 0.0
    num_late: int = 0
    by_end: bool = False
    mixed_units: bool = False
    step_s: int = 0


def clock_faults(stamps: Sequence[float] | np.ndarray, by_end: bool = False) -> ClockFaults:
    """Looks at the stamps (seconds, in file order) of the rows that can be replayed.

    Args:
        by_end: a file of this kind holds its rows in the order of their ends.
    """
    t = np.asarray(stamps, dtype=float)
    if not len(t):
        return ClockFaults()
    late = int(np.count_nonzero(t < np.maximum.accumulate(t)))
    mixed = _has_mixed_units(t)
    step_s = 0 if mixed else _step_s(t)
    return ClockFaults(first_s=float(t.min()), num_late=late, by_end=by_end, mixed_units=mixed, step_s=step_s)


def _has_mixed_units(t: np.ndarray) -> bool:
    digits = np.log10(t[t > 0])
    leaps = int(np.count_nonzero(np.abs(np.abs(np.diff(digits)) - 3.0) < _NEAR_DIGITS))
    return len(t) >= _MIN_ROWS and leaps >= max(2, _MIXED_SHARE * len(t))


def _step_s(t: np.ndarray) -> int:
    """Steps longer than a second count only when stamps are shared; else the arrivals are just regular."""
    whole = t[(t == np.floor(t)) & (t < 2.0**53)].astype(np.int64)
    if len(t) < _MIN_ROWS or len(whole) < _COARSE_SHARE * len(t):
        return 0
    shared = np.count_nonzero(np.diff(t) == 0) >= len(t) / 2
    return max(1, int(np.gcd.reduce(whole))) if shared else 1


# -- what every replay mends -----------------------------------------------------------------------------


def is_failed(row: TraceRow) -> bool:
    """Whether there is nothing to replay: no prompt, or no answer although the client stayed."""
    return row.prompt_tokens <= 0 or (row.output_tokens <= 0 and row.cancel_s is None)


def drop_failed(rows: Rows, notes: Notes) -> Iterator[TraceRow]:
    """Without the requests that had no prompt or no answer."""
    for row in rows:
        if is_failed(row):
            notes.count("requests without prompt or answer left out")
        else:
            yield row


Order = Callable[[Rows], Iterable[TraceRow]]


def mend(rows: Rows, faults: ClockFaults, seed: int, notes: Notes, order: Order | None = None) -> Rows:
    """Stamps in one unit, in order, and not all at the same instant.

    Args:
        faults: of these very rows, from `clock_faults`.
        order: how rows are sorted by `t`; None sorts them in memory.
    """
    if faults.mixed_units:
        rows = one_unit(rows, faults.first_s, notes)
    if faults.num_late or faults.mixed_units:
        is_fault = not faults.mixed_units and not faults.by_end
        notes.count("requests were out of order; sorted by time", faults.num_late if is_fault else 0)
        rows = order(rows) if order else in_order(rows)
    return spread(rows, faults.step_s, seed, notes) if faults.step_s else rows


def in_order(rows: Rows) -> list[TraceRow]:
    """Sorted by time; rows with the same stamp stay as they were."""
    return sorted(rows, key=lambda row: row.t)


def one_unit(rows: Rows, first_s: float, notes: Notes) -> Iterator[TraceRow]:
    """Milliseconds among seconds, in file order: read as whichever lies nearer to the row before."""
    clock = MixedClock(first_s)
    for row in rows:
        t = clock.seconds(row.t)
        notes.count("time stamps were milliseconds among seconds; divided by 1000", int(t != row.t))
        yield row if t == row.t else replace(row, t=t)


class MixedClock:
    """Reads stamps in file order, some of which are milliseconds.

    Args:
        first_s: the earliest stamp.
    """

    def __init__(self, first_s: float) -> None:
        self._before_s = first_s

    def seconds(self, stamp: float) -> float:
        """The stamp, or a thousandth of it where that lies much nearer to the one before."""
        off_s = abs(stamp - self._before_s)
        in_s = stamp / _MS_PER_S
        is_ms = off_s > _FAR_S and abs(in_s - self._before_s) < off_s / 10
        self._before_s = in_s if is_ms else stamp
        return self._before_s


def spread(rows: Rows, step_s: int, seed: int, notes: Notes) -> Iterator[TraceRow]:
    """Rows in order; those on a whole step come evenly at random within it, in their order.

    Coarse stamps would send a step's requests all at once. Nobody overtakes a request of the same stamp, so
    that a session's turns stay in order.
    """
    rng = random.Random(f"{seed}/spread")
    unit = "whole seconds" if step_s == 1 else f"steps of {step_s} s"
    for _, group in groupby(rows, key=lambda row: row.t // step_s):
        together = list(group)
        coarse = [row for row in together if row.t % step_s == 0]
        offsets = sorted(rng.random() * step_s for _ in coarse)
        notes.count(f"time stamps are {unit}; requests spread evenly at random within each", len(coarse))
        moved = [replace(row, t=row.t + offset) for row, offset in zip(coarse, offsets, strict=True)]
        others = [row for row in together if row.t % step_s != 0]
        yield from sorted(moved + others, key=lambda row: row.t) if others else moved


# -- what the user asks for ------------------------------------------------------------------------------


def crop(rows: Rows, start_s: float = 0.0, end_s: float | None = None) -> Iterator[TraceRow]:
    """The rows from `start_s` up to `end_s`, in the trace's own seconds."""
    return (row for row in rows if row.t >= start_s and (end_s is None or row.t < end_s))


def thin(rows: Rows, share: float, seed: int) -> Iterator[TraceRow]:
    """The rows of a seeded `share` of users, or of sessions where rows name no user.

    Whole ones, so that what they do between their requests survives; a row that names neither stands alone.
    """

    @lru_cache(maxsize=65536)
    def keeps(whose: str) -> bool:
        return random.Random(f"{seed}/keep/{whose}").random() < share

    return (row for row in rows if share >= 1.0 or keeps(row.user or row.session or row.id))


def retime(
    rows: Rows, *, start_s: float = 0.0, max_idle_s: float | None = None, speed: float = 1.0
) -> Iterator[TraceRow]:
    """Rows in order, `t` counted from `start_s`; longer silences become `max_idle_s`; all `speed` times as
    fast, think times too.
    """
    before_s, now_s = start_s, 0.0
    for row in rows:
        gap_s, think_s = row.t - before_s, row.think_s
        if max_idle_s is not None:
            gap_s = min(gap_s, max_idle_s)
            think_s = None if think_s is None else min(think_s, max_idle_s)
        now_s += gap_s
        before_s = row.t
        think_s = None if think_s is None else round(think_s / speed, _DIGITS)
        yield replace(row, t=round(now_s / speed, _DIGITS), think_s=think_s)


def unique_ids(rows: Rows, notes: Notes) -> Iterator[TraceRow]:
    """The second row of an id gets `~2`, the third `~3`; a turn follows the latest of its `after`."""
    latest: dict[str, str] = {}
    counts: dict[str, int] = {}
    for row in rows:
        after = row.after and latest.get(row.after, row.after)
        new_id, number = row.id, counts.get(row.id, 0) + 1
        while number > 1 and (new_id := f"{row.id}~{number}") in counts:
            number += 1
        notes.count("duplicate ids renamed", int(new_id != row.id))
        counts[row.id], counts[new_id], latest[row.id] = number, max(1, counts.get(new_id, 1)), new_id
        yield row if (new_id, after) == (row.id, row.after) else replace(row, id=new_id, after=after)


def link_turns(rows: Rows, notes: Notes) -> Iterator[TraceRow]:
    """Turns whose previous turn is not among the rows before them no longer wait for it."""
    seen: set[str] = set()
    for row in rows:
        if row.after is not None and row.after not in seen:
            notes.count("turns whose previous turn is not here start at their own time")
            row = replace(row, after=None, think_s=None)
        seen.add(row.id)
        yield row


def cap_lengths(
    rows: Rows,
    notes: Notes,
    *,
    context_tokens: int | None = None,
    max_output_tokens: int | None = None,
    block_tokens: int = 0,
) -> Iterator[TraceRow]:
    """Answers cut to `max_output_tokens`; beyond the context, answers to half of it and prompts to the rest.

    Args:
        context_tokens: prompt and answer together; None is no limit.
        block_tokens: of the rows' prefix blocks; those beyond a cut prompt go.
    """
    for row in rows:
        fitted = _fit(row, context_tokens, max_output_tokens, block_tokens)
        if fitted is not row:
            notes.count("requests cut to the context or to the longest answer allowed")
        yield fitted


def _fit(row: TraceRow, context: int | None, max_output: int | None, block: int) -> TraceRow:
    prompt, output = row.prompt_tokens, min(row.output_tokens, max_output or row.output_tokens)
    if context is not None and prompt + output > context:
        output = min(output, max(1, context // 2))
        prompt = min(prompt, max(1, context - output))
    if (prompt, output) == (row.prompt_tokens, row.output_tokens):
        return row
    return replace(
        row,
        prompt_tokens=prompt,
        output_tokens=output,
        prefix=row.prefix[: -(-prompt // block)] if block else row.prefix,
        cached=None if row.cached is None else min(row.cached, prompt),
    )
