"""The `tuner report` command; reads while a study is being written."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from tuner.errors import TunerError
from tuner.html_report.evidence import gather
from tuner.html_report.page import page
from tuner.paths import locate_database
from tuner.store.database import open_to_read
from tuner.store.studies import Studies


def run(arguments: argparse.Namespace) -> int:
    """Writes the report. Raises: TunerError."""
    location = locate_database(arguments.db)
    engine = open_to_read(location)
    try:
        studies = Studies(engine)
        evidence = gather(studies, studies.get(arguments.study), location.shown)
    finally:
        engine.dispose()
    content = page(evidence, location.option)
    file = arguments.html or Path(f"{evidence.study.name}.html")
    _write(file, content)
    size = f"{len(content.encode()) / 1e6:.1f} MB"
    print(f"{evidence.study.name}: {file} ({size}), open it in any browser", file=sys.stderr)
    return 0


def _write(file: Path, content: str) -> None:
    """Whole or not at all: an earlier report is lost only to a new one."""
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        if file.exists() and not file.is_file():  # a pipe, or /dev/stdout
            file.write_text(content, encoding="utf-8")
            return
        new.write_text(content, encoding="utf-8")
        new.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise TunerError(f"cannot write {file}: {error.strerror}; choose another --html") from error
