"""A recording on disk: one file, or numbered parts of it.

`engine.recording.lines` opens and writes files as this does, but may not be imported from here; what can be
shared without touching the disk is in `engine.core.trace_parts`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from engine.core.trace_parts import Parts, part_name, renamed_aside
from loadtests.errors import RecordingError


class TraceFile:
    """Appends rows, each whole and in one write. A file that is there already is kept under a numbered name.

    Args:
        header: of every part; asked when the first row comes.
        max_bytes: of a part; 0 is no limit.

    Raises:
        RecordingError: the file cannot be made.
    """

    def __init__(self, path: Path, header: Callable[[], str], max_bytes: int = 0) -> None:
        self.path = path
        self._parts = Parts(header, max_bytes)
        if not path.name:
            raise RecordingError(f"cannot record to {str(path)!r}: it names no file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _set_aside(path)
            self._file, self._part = _open(path, 1), 1
        except OSError as error:
            raise RecordingError(f"cannot record to {path}: {error.strerror or error}") from error

    def append(self, line: str) -> None:
        """Raises: RecordingError: the disk does not take it."""
        part, text = self._parts.place(line)
        try:
            if part != self._part:
                self._file.close()
                self._file, self._part = _open(self.path, part), part
            data = text.encode()
            if (num_written := self._file.write(data)) < len(data):
                with contextlib.suppress(OSError):  # half a row would make the whole recording unreadable
                    self._file.truncate(self._file.seek(-num_written, os.SEEK_CUR))
                raise RecordingError(f"{self.path}: the disk is full")
        except OSError as error:
            raise RecordingError(f"{self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        self._file.close()


def _open(path: Path, part: int) -> FileIO:
    return FileIO(path.with_name(part_name(path.name, part)), "w")


def _set_aside(path: Path) -> None:
    if path.exists() and not path.is_file():
        return
    for old, new in renamed_aside(path.name, os.listdir(path.parent)).items():
        if path.with_name(old).stat().st_size:
            os.replace(path.with_name(old), path.with_name(new))
