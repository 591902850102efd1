"""Other names for what a trace names: tagged, so that merged traces do not mix, or hashed anew."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b

from engine.core.trace import TraceRow

_DIGEST_BYTES = 6


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


class Salt:
    """A salt that nobody keeps: names hashed with it compare among themselves and lead nowhere else."""

    def __init__(self, salt: bytes | None = None) -> None:
        self._salt = salt or secrets.token_bytes(16)

    @property
    def id(self) -> str:
        """Names the salt without giving it away."""
        return blake2b(self._salt, digest_size=4).hexdigest()

    def pseudonym(self, name: str) -> str:
        return blake2b(name.encode(), key=self._salt, digest_size=_DIGEST_BYTES).hexdigest()
