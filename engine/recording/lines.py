"""Lines to disk from a thread of their own, so that whoever has something to say never waits."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from engine.core.errors import EvenflowError
from engine.core.trace_parts import part_name, renamed_aside

_log = logging.getLogger(__name__)
_MAX_QUEUED = 65536
_END = object()


class RecordError(EvenflowError):
    """A recording cannot be opened."""


def _one_file(line: str) -> tuple[int, str]:
    return 1, line + "\n"


class LineWriter:
    """Appends lines to a new file from a thread of its own.

    A line is on its way to the disk, whole and in one write, as soon as it is formatted: a process that is
    killed loses what is queued, and no line is cut short. A file that is there already is kept under a
    numbered name. When the disk is slower than the traffic, lines are dropped, counted and reported; when
    it fails, recording ends with one message.

    Args:
        format_line: makes a line, without its break; called on the writer's thread.
        place: the number of the file that a line goes to, from 1, and the text to append; on the writer's
            thread too.

    Raises:
        RecordError: the file cannot be made.
    """

    def __init__(
        self,
        path: Path,
        format_line: Callable[[Any], str],
        max_queued: int = _MAX_QUEUED,
        place: Callable[[str], tuple[int, str]] = _one_file,
    ) -> None:
        self.num_dropped = 0
        self._path = path
        self._format = format_line
        self._place = place
        self._queue: queue.Queue[Any] = queue.Queue(max_queued)
        if not path.name:
            raise RecordError(f"cannot record to {str(path)!r}: it names no file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _set_aside(path)
            self._file, self._number = _open(path, 1), 1
        except OSError as error:
            raise RecordError(f"cannot record to {path}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._run, name=f"write {path.name}", daemon=True)
        self._thread.start()

    def put(self, value: Any) -> None:
        """Queues a value; never blocks."""
        try:
            self._queue.put_nowait(value)
        except queue.Full:
            self.num_dropped += 1
            if self.num_dropped == 1:
                _log.warning("%s: the disk is too slow; lines are being dropped", self._path)

    def close(self) -> None:
        """Writes what is queued and closes the file."""
        self._queue.put(_END)
        self._thread.join()
        if self.num_dropped:
            _log.warning("%s: %d lines were dropped", self._path, self.num_dropped)

    def _run(self) -> None:
        try:
            while (value := self._queue.get()) is not _END:
                self._write(*self._place(self._format(value)))
            self._file.close()
        except Exception as error:  # noqa: BLE001  the server goes on, whatever becomes of its recording
            said = error.strerror if isinstance(error, OSError) else None
            _log.error("%s: %s; nothing more is recorded", self._path, said or repr(error))
            self._discard_until_end()

    def _write(self, number: int, text: str) -> None:
        if number != self._number:
            self._file.close()
            self._file, self._number = _open(self._path, number), number
        data = text.encode()
        if (num_written := self._file.write(data)) < len(data):
            with contextlib.suppress(OSError):  # half a line would make the whole recording unreadable
                self._file.truncate(self._file.seek(-num_written, os.SEEK_CUR))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _discard_until_end(self) -> None:
        while self._queue.get() is not _END:
            pass


def _open(path: Path, number: int) -> FileIO:
    return FileIO(path.with_name(part_name(path.name, number)), "w")


def _set_aside(path: Path) -> None:
    if path.exists() and not path.is_file():
        return
    for old, new in renamed_aside(path.name, os.listdir(path.parent)).items():
        if path.with_name(old).stat().st_size:
            os.replace(path.with_name(old), path.with_name(new))
