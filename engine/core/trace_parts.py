"""A recording in several files: what they are called, and which of them a row goes to. Opens none of them.

`monday.jsonl` goes on in `monday.part-2.jsonl`, and so on; every part begins with the same header.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from itertools import count
from pathlib import PurePath


def part_name(name: str, part: int) -> str:
    """The name of a recording's n-th file, from 1."""
    path = PurePath(name)
    return name if part == 1 else f"{path.stem}.part-{part}{path.suffix}"


def renamed_aside(name: str, taken: Collection[str]) -> dict[str, str]:
    """New names for the files of an earlier recording, so that one of the same `name` can begin.

    Args:
        taken: every name in the folder.
    """
    path = PurePath(name)
    pattern = re.compile(re.escape(path.stem) + r"(\.part-[0-9]+)?" + re.escape(path.suffix))
    earlier = {old: match[1] or "" for old in sorted(taken) if (match := pattern.fullmatch(old))}
    for number in count(1):
        renamed = {old: f"{path.stem}.{number}{part}{path.suffix}" for old, part in earlier.items()}
        if not set(renamed.values()) & set(taken):
            return renamed
    raise AssertionError("numbers do not end")


class Parts:
    """Puts a header before the first line of every part, and begins a part when the one before is full.

    Args:
        header: asked once, when the first line comes.
        max_bytes: a part is full once it would grow beyond this; 0 never. A part holds one line at least.
    """

    def __init__(self, header: Callable[[], str], max_bytes: int = 0) -> None:
        self._make_header = header
        self._max_bytes = max_bytes
        self._header = ""
        self._num_bytes = 0
        self._part = 0

    def place(self, line: str) -> tuple[int, str]:
        """The part that a line goes to, and the text to append to it, breaks included."""
        size = len(line.encode()) + 1
        is_full = self._max_bytes and self._num_bytes + size > self._max_bytes
        if self._part and not is_full:
            self._num_bytes += size
            return self._part, line + "\n"
        self._header = self._header or self._make_header()
        self._part += 1
        self._num_bytes = len(self._header.encode()) + 1 + size
        return self._part, f"{self._header}\n{line}\n"
