"""From traces of any formats to one of any: mended, merged, cut, scaled, and without names if wanted.

Every input is read twice, once to see what is wrong with it and once to convert it; what is kept of a row
between the two is its stamp and a hash of its id (16 bytes).
"""

from __future__ import annotations

import heapq
import secrets
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np

from engine.core.errors import TraceError
from engine.core.redaction import Redactor
from engine.core.trace import TraceHeader, TraceRow
from loadtests.traces import fixes
from loadtests.traces.blocks import cannot_regroup, regroup
from loadtests.traces.files import find_exporter, open_trace, write_trace
from loadtests.traces.fixes import ClockFaults, Notes, Rows
from loadtests.traces.names import renamed
from loadtests.traces.reading import Reading, wall_clock
from loadtests.traces.spill import sorted_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What is done on the way; the defaults mend what replay would mend and keep the rest.

    Attributes:
        to: a format's name.
        mend: stamps in one unit, in order and not in coarse steps, and ids unique.
        start_s, end_s: the part to keep, in the trace's own seconds; `t` counts from `start_s` then.
        keep_share: of the users, or sessions.
        max_idle_s: longer silences are shortened to this.
        speed: 2 puts everything in half the time, think times too.
        context_tokens: prompts that do not fit with their answers are cut.
        overlay: merged traces all start at 0, even if the wall clock of each is known.
        redact: hashes all names with a fresh salt, and names no files.
    """

    to: str = "evenflow"
    mend: bool = True
    start_s: float = 0.0
    end_s: float | None = None
    keep_share: float = 1.0
    max_idle_s: float | None = None
    speed: float = 1.0
    context_tokens: int | None = None
    overlay: bool = False
    redact: bool = False


def convert(
    inputs: Sequence[Path],
    out: Path,
    conversion: Conversion,
    reading: Reading,
    *,
    force: bool = False,
) -> tuple[int, tuple[str, ...]]:
    """Writes `out`; the number of rows in it, and what the reader of it should know, one line each.

    Args:
        reading: of what files do not say; its seed is that of mending and thinning too.
        force: replaces a file that is there already.

    Raises:
        TraceError: an input cannot be read, `out` cannot be written, there is no such format, or no row has
            a user or session to thin by.
    """
    find_exporter(conversion.to)
    if out.exists() and not force:
        raise TraceError(f"{out} is there already; --force replaces it")
    return _Converter(inputs, conversion, reading).write(out, force)


@dataclass(frozen=True, slots=True)
class _Input:
    """What one file turned out to be.

    Attributes:
        tag: goes before its names; empty when they cannot be mistaken for another's.
    """

    path: Path
    format: str
    header: TraceHeader
    faults: ClockFaults
    has_duplicates: bool
    num_owned: int
    offset_s: float = 0.0
    tag: str = ""


def _survey(path: Path, reading: Reading) -> _Input:
    stamps, ids, num_owned = array("d"), array("q"), 0
    trace = open_trace(path, reading)
    for row in trace.rows:
        stamps.append(row.t)
        ids.append(hash(row.id))
        num_owned += row.user is not None or row.session is not None
    has_duplicates = len(np.unique(ids)) < len(ids)
    faults = fixes.clock_faults(stamps, trace.by_end)
    return _Input(path, trace.format, trace.header, faults, has_duplicates, num_owned)


_Value = TypeVar("_Value")


def _common(values: Iterable[_Value]) -> _Value | None:
    """The value that all are; None when they differ."""
    first, *others = set(values)
    return None if others else first


class _Converter:
    def __init__(self, inputs: Sequence[Path], conversion: Conversion, reading: Reading) -> None:
        self.wanted, self.reading, self.notes = conversion, reading, Notes()
        self.inputs = self._placed([_survey(path, reading) for path in inputs])
        self.block = max(item.header.block for item in self.inputs)
        self.redactor = Redactor(secrets.token_bytes(16)) if conversion.redact else None
        self.num_rows = 0

    def write(self, out: Path, force: bool) -> tuple[int, tuple[str, ...]]:
        if self.wanted.keep_share < 1.0 and not any(item.num_owned for item in self.inputs):
            raise TraceError(
                f"{self.inputs[0].path}: no row names a user or session, so there is nothing to thin by; "
                "crop it (--until) or slow it down (--speed) instead"
            )
        rows = self._counted(self._wished(heapq.merge(*map(self._rows, self.inputs), key=lambda row: row.t)))
        first = next(rows, None)
        if first is None:
            raise TraceError(f"{out}: no request is left to write; keep a longer part, or more of it")
        write_trace(out, self.wanted.to, self._header(), chain([first], rows), self.notes, force=force)
        return self.num_rows, self.notes.lines

    def _counted(self, rows: Rows) -> Iterator[TraceRow]:
        for row in rows:
            self.num_rows += 1
            yield row

    # -- one input -----------------------------------------------------------------------------------

    def _rows(self, item: _Input) -> Rows:
        """Mended, by the common clock, and with names and blocks that are everybody's."""
        trace = open_trace(item.path, self.reading)
        faults = item.faults
        if not self.wanted.mend:
            is_sorted = len(self.inputs) > 1  # merging needs it
            faults = ClockFaults(num_late=faults.num_late if is_sorted else 0, by_end=faults.by_end)
        rows = fixes.mend(trace.rows, faults, self.reading.seed, self.notes, order=sorted_rows)
        if item.tag:
            rows = renamed(rows, lambda name: f"{item.tag}{name}")
        if item.offset_s or item.header.block != self.block:
            rows = self._in_common(item, rows)
        yield from rows
        self.notes.add(trace.notes)

    def _in_common(self, item: _Input, rows: Rows) -> Iterator[TraceRow]:
        for row in rows:
            prefix = regroup(row.prefix, row.prompt_tokens, item.header.block, self.block)
            if prefix is None:
                self.notes.count(cannot_regroup(item.header, self.block))
            yield replace(row, t=row.t + item.offset_s, prefix=prefix or ())

    # -- all of them ---------------------------------------------------------------------------------

    def _wished(self, rows: Rows) -> Rows:
        wanted, notes, seed = self.wanted, self.notes, self.reading.seed
        is_cut = wanted.start_s > 0 or wanted.end_s is not None or wanted.keep_share < 1.0
        if wanted.start_s > 0 or wanted.end_s is not None:
            rows = fixes.crop(rows, wanted.start_s, wanted.end_s)
        if wanted.keep_share < 1.0:
            rows = fixes.thin(self._ownerless(rows), wanted.keep_share, seed)
        if wanted.start_s > 0 or wanted.max_idle_s is not None or wanted.speed != 1.0:
            rows = fixes.retime(
                rows, start_s=wanted.start_s, max_idle_s=wanted.max_idle_s, speed=wanted.speed
            )
        if len(self.inputs) > 1 or (wanted.mend and self.inputs[0].has_duplicates):
            rows = fixes.unique_ids(rows, notes)
        if is_cut:
            rows = fixes.link_turns(rows, notes)
        if wanted.context_tokens is not None:
            rows = fixes.cap_lengths(
                rows, notes, context_tokens=wanted.context_tokens, block_tokens=self.block
            )
        return renamed(rows, self.redactor.pseudonym) if self.redactor else rows

    def _ownerless(self, rows: Rows) -> Iterator[TraceRow]:
        for row in rows:
            if row.user is None and row.session is None:
                self.notes.count("requests name neither user nor session: each was kept or not by itself")
            yield row

    def _placed(self, inputs: list[_Input]) -> list[_Input]:
        """Several traces on one clock, and with tags unless their names come from the same salt."""
        if len(inputs) == 1:
            return inputs
        clocks = [wall_clock(item.header.t0) for item in inputs]
        known = [clock for clock in clocks if clock is not None]
        by_clock = len(known) == len(clocks) and not self.wanted.overlay
        salts = [item.header.salt_id or str(item.path) for item in inputs]
        placed = []
        for index, item in enumerate(inputs):
            offset_s = (known[index] - min(known)).total_seconds() if by_clock else 0.0
            how = "by its own clock; --overlay starts all at 0" if by_clock else "where the merged trace does"
            self.notes.say(f"{item.path.name} starts at {offset_s:g} s, {how}")
            tag = "" if len(set(salts)) == 1 else f"{salts.index(salts[index]) + 1}/"
            placed.append(replace(item, offset_s=offset_s, tag=tag))
        return placed

    def _header(self) -> TraceHeader:
        headers = [item.header for item in self.inputs]
        if _common(header.tokenizer for header in headers) is None:
            self.notes.say("the traces were counted by different tokenizers; the header names none")
        sources = [item.format if self.redactor else item.header.source for item in self.inputs]
        return TraceHeader(
            t0=self._t0([header.t0 for header in headers]),
            tokenizer=_common(header.tokenizer for header in headers) or "",
            block=self.block,
            text_block=_common(header.text_block for header in headers),
            salt_id=self.redactor.salt_id if self.redactor else _common(h.salt_id for h in headers) or "",
            source=" + ".join(dict.fromkeys(sources)),
        )

    def _t0(self, clocks: list[str]) -> str:
        if len(clocks) == 1 and not self.wanted.start_s:
            return clocks[0]
        known = [instant for instant in map(wall_clock, clocks) if instant is not None]
        if len(known) < len(clocks) or (self.wanted.overlay and len(known) > 1):
            return ""
        return (min(known) + timedelta(seconds=self.wanted.start_s)).isoformat()
