"""Sorts more rows than memory should hold: sorted runs on disk, merged as they are read."""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import IO

from engine.core.trace import TraceRow
from loadtests.traces.fixes import in_order

_RUN_ROWS = 50_000
_BATCH_ROWS = 500


def sorted_rows(rows: Iterable[TraceRow], run_rows: int = _RUN_ROWS) -> Iterator[TraceRow]:
    """The rows by time; rows with the same stamp stay as they were. Holds `run_rows` at a time."""
    rows = iter(rows)
    with ExitStack() as files:
        runs: list[Iterator[TraceRow]] = []
        while run := in_order(islice(rows, run_rows)):
            if len(run) < run_rows:
                runs.append(iter(run))
                break
            file = files.enter_context(tempfile.TemporaryFile(prefix="evenflow-sort-"))
            _write(run, file)
            runs.append(_read(file))
        yield from heapq.merge(*runs, key=lambda row: row.t)


def _write(run: list[TraceRow], file: IO[bytes]) -> None:
    for start in range(0, len(run), _BATCH_ROWS):
        pickle.dump(run[start : start + _BATCH_ROWS], file, pickle.HIGHEST_PROTOCOL)
    file.seek(0)


def _read(file: IO[bytes]) -> Iterator[TraceRow]:
    while True:
        try:
            yield from pickle.load(file)
        except EOFError:
            return
