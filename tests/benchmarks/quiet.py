"""How much of this machine other programs take; Linux alone."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

_LOOK_S = 3.0


def wait_until_quiet(others: float) -> None:
    while True:
        with others_share() as share:
            time.sleep(_LOOK_S)
        if share[0] <= others:
            return


@contextlib.contextmanager
def others_share() -> Iterator[list[float]]:
    """Afterwards holds the share of this machine's cores that neither we nor our engine used."""
    share, busy_s, own_s, began_s = [0.0], _busy_s(), _own_s(), time.monotonic()
    yield share
    others_s = (_busy_s() - busy_s) - (_own_s() - own_s)
    share[0] = max(0.0, others_s / (time.monotonic() - began_s) / (os.cpu_count() or 1))


def _busy_s() -> float:
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """CPU seconds of this process, its children that have ended, and those that run: the engine."""
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s = sum(usage.ru_utime + usage.ru_stime for usage in ended)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                own_s += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own_s
