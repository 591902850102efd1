"""Folders that are there while a block runs, and whose leftovers the next one removes."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LOCK = "in-use"


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A new folder under the temporary one. What killed processes left of theirs is removed first: a lock
    falls free when its process ends, however it ends.
    """
    _remove_left(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    with (folder / "new").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "new").rename(folder / _LOCK)  # nobody sees it before it is locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_left(prefix: str) -> None:
    for file in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        with contextlib.suppress(OSError), file.open("r+") as lock:  # somebody else's, or in use
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(file.parent, ignore_errors=True)
