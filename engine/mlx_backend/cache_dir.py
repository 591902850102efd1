"""Where downloaded and converted files are kept, and how they get there whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME` or `~/.cache`, under `evenflow`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenflow"


def make_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, a file or directory, made by `make(scratch_path)` unless it is already there.

    `target` appears by one rename, so an interrupted `make` leaves nothing behind that looks finished,
    and of two processes that make it at once the first wins and the second throws its copy away.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as scratch:
        made = Path(scratch, target.name)
        make(made)
        _publish(made, target)
    return target


def _publish(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(made, ignore_errors=True)
