"""Other names for what a trace names, so that merged traces do not mix or names are not given away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from engine.core.trace import TraceRow


def renamed(rows: Iterable[TraceRow], rename: Callable[[str], str]) -> Iterator[TraceRow]:
    """The rows with other names for requests, users, sessions and prefix blocks, equal where they were."""
    for row in rows:
        yield replace(
            row,
            id=rename(row.id),
            user=row.user and rename(row.user),
            session=row.session and rename(row.session),
            after=row.after and rename(row.after),
            prefix=tuple(map(rename, row.prefix)),
        )
