"""A trace file as text: its lines, its cells, and complaints that name file, line and field."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

from engine.core.errors import TraceError
from engine.core.json_text import parse_json
from engine.core.trace import MAX_TOKENS

_PIECE_CHARS = 1 << 16
_SHOWN_CHARS = 60
_WHOLE = f"a whole number from 0 to {MAX_TOKENS}"
_SURELY_SMALL_DIGITS = 8
# How files begin that hold text, but not as UTF-8; and what makes UTF-8 of them.
_OTHERWISE_WRITTEN = {
    b"\x1f\x8b": "compressed; unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "compressed; unpack it with zstd -d",
    b"\xfd7zXZ": "compressed; unpack it with unxz",
    b"BZh": "compressed; unpack it with bunzip2",
    b"PK\x03\x04": "an archive; unpack it with unzip",
    b"\xff\xfe": "UTF-16, not UTF-8 text; iconv -f UTF-16 -t UTF-8 makes that of it",
    b"\xfe\xff": "UTF-16, not UTF-8 text; iconv -f UTF-16 -t UTF-8 makes that of it",
}


class Source:
    """A trace's text, read once from front to back. Blank lines are skipped; lines count from 1.

    Attributes:
        name: of the file, for complaints.
        head: its first line that is not blank; of a file that is one JSON array, the first piece.

    Raises:
        TraceError: nothing but blank lines.
    """

    def __init__(self, pieces: Iterable[str], name: str) -> None:
        self.name = name
        self._rest = enumerate(pieces, start=1)
        number_and_head = next((item for item in self._rest if not item[1].isspace()), None)
        if number_and_head is None:
            raise TraceError(f"{name}: the file is empty")
        self._first, self.head = number_and_head
        self._number_read = self._first

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of every line."""
        yield self._first, self.head
        for item in self._rest:
            if not item[1].isspace():
                yield item

    def pieces(self) -> Iterator[str]:
        """The text in pieces of any length, for formats that are not made of lines."""
        yield "\n" * (self._first - 1) + self.head
        for _, piece in self._rest:
            yield piece

    def objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and value of every line of a JSON Lines file.

        Raises:
            TraceError: a line is no JSON object.
        """
        for number, text in self.lines():
            try:
                value = parse_json(text)
            except ValueError as error:
                raise TraceError(f"{self.name}, line {number}: not JSON ({error})") from None
            if not isinstance(value, dict):
                self.fail(number, "the line", "a JSON object", text.strip())
            yield number, value

    def table(
        self, columns: Sequence[str], optional: Sequence[str] = ()
    ) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Number and cells of every row of a CSV file: those of `columns`, then of `optional`.

        An optional column that the file lacks is read as empty cells; further columns are skipped.

        Raises:
            TraceError: a column is missing, or a row has more or fewer cells than the first line.
        """
        rows = self._rows()
        header = [name.strip() for name in next(rows)[1]]
        if missing := [name for name in columns if name not in header]:
            self.fail(self._first, "the header", f"one with a column {missing[0]!r}", ",".join(header))
        pick = itemgetter(*(header.index(n) if n in header else -1 for n in (*columns, *optional)))
        for number, cells in rows:
            if len(cells) != len(header):
                self.fail(number, "the row", f"{len(header)} cells", f"{len(cells)} cells")
            cells.append("")
            yield number, pick(cells)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        try:
            for cells in csv.reader(self._counted()):
                if len(cells) > 1 or (cells and cells[0].strip()):
                    yield self._number_read, cells
        except csv.Error as error:
            raise TraceError(f"{self.name}, line {self._number_read}: not CSV ({error})") from None

    def _counted(self) -> Iterator[str]:
        yield self.head
        for number, text in self._rest:
            self._number_read = number
            yield text

    def whole(self, number: int, field: str, value: Any) -> int:
        """A count of tokens, or another whole number from 0."""
        if type(value) is int and 0 <= value <= MAX_TOKENS:
            return value
        if isinstance(value, str) and len(value) <= _SURELY_SMALL_DIGITS and value.isdecimal():
            return int(value)
        count = self._number(number, field, value, _WHOLE)
        if not 0 <= count <= MAX_TOKENS or count != int(count):
            self.fail(number, field, _WHOLE, value)
        return int(count)

    def seconds(self, number: int, field: str, value: Any) -> float:
        """A number of seconds (or of the format's own unit) from 0."""
        if type(value) is float and 0.0 <= value < math.inf:
            return value
        seconds = self._number(number, field, value, "a number from 0")
        return seconds if seconds >= 0 else self.fail(number, field, "a number from 0", value)

    def fail(self, number: int, field: str, wanted: str, value: Any) -> NoReturn:
        """Raises the one line for a field at fault."""
        if value is None:
            raise TraceError(f"{self.name}, line {number}: {field} must be {wanted}; it is missing")
        shown = value if isinstance(value, str) else repr(value)
        shown = repr(shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…")
        raise TraceError(f"{self.name}, line {number}: {field} must be {wanted}, not {shown}")

    def _number(self, number: int, field: str, value: Any, wanted: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self.fail(number, field, wanted, value)
        try:
            parsed = float(value)
        except (ValueError, OverflowError):
            self.fail(number, field, wanted, value)
        return parsed if math.isfinite(parsed) else self.fail(number, field, wanted, value)


def cell(text: str | None) -> str:
    """A text as a CSV cell; None is empty."""
    if text is None or not any(sign in text for sign in ',"\r\n'):
        return text or ""
    return '"' + text.replace('"', '""') + '"'


def open_source(path: Path) -> Source:
    """Opens a file; its text is read as it is asked for.

    Raises:
        TraceError: it cannot be read, is not UTF-8 text (then perhaps later), or is empty.
    """
    return Source(_pieces(path), str(path))


def _pieces(path: Path) -> Iterator[str]:
    """Lines; of a JSON array, whose lines may be of any length, pieces of bounded length."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            while (first := file.readline(_PIECE_CHARS)).isspace():
                yield first
            if not first:
                return
            if first.lstrip().startswith("["):
                yield first + file.read(_PIECE_CHARS)
                yield from iter(lambda: file.read(_PIECE_CHARS), "")
                return
            yield first if first.endswith("\n") else first + file.readline()
            yield from file
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: {_how_written(error.object)}") from error


def _how_written(piece: bytes) -> str:
    """What a file is whose first, or a later piece is no UTF-8."""
    told = (what for beginning, what in _OTHERWISE_WRITTEN.items() if piece.startswith(beginning))
    return next(told, "not UTF-8 text")
