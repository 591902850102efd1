"""Opens a trace file of any known format; the format is told by its content, never by its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.core.errors import TraceError
from engine.core.trace import TraceHeader, TraceRow, is_header, parse_header, parse_row
from loadtests.traces import azure, burstgpt, mooncake, servegen
from loadtests.traces.lines import Lines

_IMPORTERS = (mooncake, azure, servegen, burstgpt)


@dataclass(frozen=True, slots=True)
class Trace:
    """An open trace.

    Attributes:
        format: `evenflow`, `mooncake`, `azure`, `servegen` or `burstgpt`.
        rows: read from the file as they are asked for; a TraceError may come out of it.
    """

    format: str
    header: TraceHeader
    rows: Iterator[TraceRow]


def open_trace(path: Path | str) -> Trace:
    """Reads the file's first line, says what it is, and yields its rows as they are asked for.

    Raises:
        TraceError: no such file, not text, empty, or of no known format; later, from `rows`, a line and
            field at fault.
    """
    lines = Lines(_text_lines(Path(path)), str(path))
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: the file is empty")
    if is_header(first.text):
        rows = (parse_row(line.text, str(path), line.number) for line in lines)
        return Trace("evenflow", parse_header(first.text, str(path)), rows)
    for importer in _IMPORTERS:
        if importer.recognises(first.text):
            header = TraceHeader(source=f"{importer.NAME}: {Path(path).name}", block=importer.BLOCK_TOKENS)
            return Trace(importer.NAME, header, importer.read(lines.from_line(first)))
    known = ", ".join(importer.NAME for importer in _IMPORTERS)
    raise TraceError(f"{path}, line 1: no known trace format (evenflow, {known})")


def _text_lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from file
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text") from error
