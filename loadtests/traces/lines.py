"""A trace file's lines with their numbers, and the values in them; errors name file, line and field."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from engine.core.errors import TraceError


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank; counted from 1."""

    text: str
    number: int


class Lines(Iterator[Line]):
    """The lines of one source that are not blank."""

    def __init__(self, texts: Iterable[str], source: str) -> None:
        self.source = source
        self._numbered = iter(enumerate(texts, start=1))
        self._ahead: list[Line] = []

    def __next__(self) -> Line:
        if self._ahead:
            return self._ahead.pop()
        for number, text in self._numbered:
            if text.strip():
                return Line(text.rstrip("\r\n"), number)
        raise StopIteration

    def from_line(self, line: Line) -> Lines:
        """The same lines, with one that was read put back in front."""
        self._ahead.append(line)
        return self

    def fail(self, line: Line, name: str, wanted: str, value: Any) -> NoReturn:
        """Raises the one line for a field at fault."""
        raise TraceError(f"{self.source}, line {line.number}: {name} must be {wanted}, not {value!r}")

    def csv_rows(self) -> Iterator[tuple[Line, dict[str, str]]]:
        """Each data line as a mapping by the names in the first one."""
        names = next(csv.reader([next(self).text]))
        for line in self:
            cells = next(csv.reader([line.text]))
            if len(cells) != len(names):
                self.fail(line, "the row", f"{len(names)} cells", f"{len(cells)} cells")
            yield line, dict(zip(names, cells, strict=True))

    def tokens(self, line: Line, row: Mapping[str, Any], name: str) -> int:
        """A count of tokens, from 0."""
        number = self._number(line, row, name, "a whole number of tokens")
        if number < 0 or number != int(number):
            self.fail(line, name, "a whole number of tokens", row[name])
        return int(number)

    def seconds(self, line: Line, row: Mapping[str, Any], name: str) -> float:
        """A number of seconds (or of the format's own unit), from 0."""
        number = self._number(line, row, name, "a number from 0")
        return number if number >= 0 else self.fail(line, name, "a number from 0", row[name])

    def _number(self, line: Line, row: Mapping[str, Any], name: str, wanted: str) -> float:
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self.fail(line, name, wanted, value)
        try:
            number = float(value)
        except ValueError:
            self.fail(line, name, wanted, value)
        return number if math.isfinite(number) else self.fail(line, name, wanted, value)
