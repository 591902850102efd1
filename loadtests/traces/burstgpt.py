"""BurstGPT's traces: CSV, times in seconds; a response of no tokens is a failed request.

Source: github.com/HPMLL/BurstGPT. Later versions add a session and the request's whole time; those are
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.core.trace import TraceHeader, TraceOriginal, TraceRow
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading
from loadtests.traces.source import Source, cell

NAME = "burstgpt"
CARRIES = frozenset({"t", "prompt_tokens", "output_tokens", "session", "orig.status", "orig.e2e_s"})
HEADER_CARRIES: frozenset[str] = frozenset()
_NEEDED = ("Timestamp", "Request tokens", "Response tokens")
_OPTIONAL = ("Session ID", "Elapsed time", "Model", "Log Type")
_WRITTEN = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def recognises(head: str) -> bool:
    """Whether a file starting so is of this format."""
    return {name.strip() for name in head.split(",")} >= set(_NEEDED)


def read(source: Source, reading: Reading, notes: Notes) -> tuple[TraceHeader, Iterator[TraceRow]]:
    """The requests, in file order; failed ones carry the original status "failed".

    Raises:
        TraceError: a line or field at fault.
    """
    return TraceHeader(), _rows(source, notes)


def _rows(source: Source, notes: Notes) -> Iterator[TraceRow]:
    for number, (t, prompt, response, session, elapsed, model, log) in source.table(_NEEDED, _OPTIONAL):
        output = source.whole(number, "Response tokens", response)
        whole_s = source.seconds(number, "Elapsed time", elapsed) if elapsed else None
        notes.count("values of Model left out: a trace row has no place for it", int(bool(model)))
        notes.count("values of Log Type left out: a trace row has no place for it", int(bool(log)))
        yield TraceRow(
            id=f"{NAME}-{number}",
            t=source.seconds(number, "Timestamp", t),
            prompt_tokens=source.whole(number, "Request tokens", prompt),
            output_tokens=output,
            session=session or None,
            orig=TraceOriginal(status="ok" if output else "failed", e2e_s=whole_s),
        )


def write(rows: Iterable[TraceRow], header: TraceHeader, notes: Notes) -> Iterator[str]:
    """The file's lines, without line breaks; of an original status only failed or not is kept."""
    yield _WRITTEN
    for row in rows:
        status = row.orig.status if row.orig else None
        narrowed = status not in (None, "ok" if row.output_tokens else "failed")
        notes.count("values of orig.status narrowed to failed or not", int(narrowed))
        whole_s = row.orig.e2e_s if row.orig else None
        total = row.prompt_tokens + row.output_tokens
        yield (
            f"{row.t!r},{cell(row.session)},{'' if whole_s is None else repr(whole_s)},,"
            f"{row.prompt_tokens},{row.output_tokens},{total},"
        )
