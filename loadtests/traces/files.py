"""Opens a trace file of any known format, told by its content, never by its name; and writes one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol

from engine.core.errors import TraceError
from engine.core.trace import TraceHeader, TraceOriginal, TraceRow
from loadtests.traces import agents, azure, bailian, burstgpt, evenflow, mooncake, servegen, sharegpt
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading
from loadtests.traces.source import Source, open_source


class Importer(Protocol):
    """A format that can be read; a module is one."""

    NAME: str

    def recognises(self, head: str) -> bool: ...

    def read(
        self, source: Source, reading: Reading, notes: Notes
    ) -> tuple[TraceHeader, Iterator[TraceRow]]: ...


class Exporter(Protocol):
    """A format that can be written; a module is one.

    Attributes:
        CARRIES: the fields of a row that it has a place for; those of `orig` as `orig.status`.
        HEADER_CARRIES: the same of the header.
    """

    NAME: str
    CARRIES: frozenset[str]
    HEADER_CARRIES: frozenset[str]

    def write(self, rows: Iterable[TraceRow], header: TraceHeader, notes: Notes) -> Iterator[str]: ...


_IMPORTERS: tuple[Importer, ...] = (
    evenflow,
    bailian,
    mooncake,
    azure,
    servegen,
    burstgpt,
    agents,
    sharegpt,
)
_EXPORTERS: tuple[Exporter, ...] = (evenflow, mooncake, azure, burstgpt, servegen, bailian, agents)
_ABSENT: tuple[object, ...] = (None, ())
_OTHER_NAMES = {"aiperf": "mooncake", "qwen": "bailian"}
FORMATS_WRITTEN = tuple(exporter.NAME for exporter in _EXPORTERS) + tuple(_OTHER_NAMES)


@dataclass(frozen=True, slots=True)
class Trace:
    """An open trace.

    Attributes:
        format: the name of one of the importers.
        rows: read from the file as they are asked for; a TraceError may come out of it.
        notes: what the reader had to make up or leave out, complete when the rows are.
        name: of the file.
    """

    format: str
    header: TraceHeader
    rows: Iterator[TraceRow]
    notes: Notes = field(default_factory=Notes)
    name: str = ""

    @property
    def by_end(self) -> bool:
        """Rows lie in the order of their ends: recorders write a row when its request is over."""
        return self.format == evenflow.NAME


def open_trace(path: Path | str, reading: Reading | None = None) -> Trace:
    """Reads the file's beginning, says what it is, and yields its rows as they are asked for.

    Raises:
        TraceError: no such file, not text, empty, or of no known format; later, from `rows`, a line and
            field at fault.
    """
    source, notes = open_source(Path(path)), Notes()
    for importer in _IMPORTERS:
        if importer.recognises(source.head):
            header, rows = importer.read(source, reading or Reading(), notes)
            told = header.source or f"{importer.NAME}: {Path(path).name}"
            return Trace(importer.NAME, replace(header, source=told), rows, notes, str(path))
    known = ", ".join(importer.NAME for importer in _IMPORTERS)
    raise TraceError(f"{path}, line 1: no known trace format ({known})")


def find_exporter(format_name: str) -> Exporter:
    """The format of that name.

    Raises:
        TraceError: there is none that can be written.
    """
    name = _OTHER_NAMES.get(format_name, format_name)
    for exporter in _EXPORTERS:
        if name == exporter.NAME:
            return exporter
    raise TraceError(f"no format {format_name!r} to write; known are {', '.join(FORMATS_WRITTEN)}")


def write_trace(
    path: Path,
    format_name: str,
    header: TraceHeader,
    rows: Iterable[TraceRow],
    notes: Notes,
    *,
    force: bool = False,
) -> None:
    """Writes a trace beside `path`, and puts it there when it is whole.

    What the format has no place for is counted in `notes`.

    Args:
        force: replaces a file that is there already.

    Raises:
        TraceError: there is such a file, or it cannot be written; and whatever comes out of `rows`.
    """
    if not path.name:
        raise TraceError(f"{str(path)!r} names no file to write")
    if path.exists() and not force:
        raise TraceError(f"{path} is there already; --force replaces it")
    exporter = find_exporter(format_name)
    lines = exporter.write(_noting_losses(rows, header, exporter, notes), header, notes)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(part, path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)


def _noting_losses(
    rows: Iterable[TraceRow], header: TraceHeader, exporter: Exporter, notes: Notes
) -> Iterator[TraceRow]:
    lost = [item.name for item in fields(TraceRow) if item.name not in exporter.CARRIES | {"orig"}]
    lost_of_original = [f.name for f in fields(TraceOriginal) if f"orig.{f.name}" not in exporter.CARRIES]
    counts: Counter[str] = Counter()
    for row in rows:
        for name in lost:
            if getattr(row, name) not in _ABSENT:
                counts[name] += 1
        if row.orig is not None and lost_of_original:
            for name in lost_of_original:
                if getattr(row.orig, name) is not None:
                    counts[f"orig.{name}"] += 1
        yield row
    for name, number in counts.items():
        notes.count(f"values of {name} left out: {exporter.NAME} has no place for it", number)
    for item in fields(TraceHeader):
        if item.name not in exporter.HEADER_CARRIES and getattr(header, item.name) != item.default:
            notes.say(f"{item.name} of the header left out: {exporter.NAME} has no place for it")
