"""Who works on what: names that one process holds at a time, and that fall free when it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tuner.errors import StoreError
from tuner.paths import DatabaseLocation


class Claims(Protocol):
    """What one process holds."""

    def take(self, name: str) -> bool:
        """Whether the name is ours now; False when another process holds it, or we do already."""

    def release(self, name: str) -> None:
        """Does nothing when it is not ours."""

    def close(self) -> None:
        """Releases everything."""


class Alone:
    """Implements `Claims` for a process that nobody works beside."""

    def take(self, name: str) -> bool:
        return True

    def release(self, name: str) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


class FileClaims:
    """Implements `Claims` by locked files beside the database."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._held: dict[str, IO[str]] = {}

    def take(self, name: str) -> bool:
        """See `Claims`. Raises: StoreError: nothing can be written beside the database."""
        file = self._file(name)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            opened = file.open("w")
        except OSError as error:
            message = f"cannot write beside {self._database}: {error.strerror}; choose another --db"
            raise StoreError(message) from error
        if not _lock(opened) or not _is_there(opened, file):
            opened.close()
            return False
        self._held[name] = opened
        return True

    def release(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            self._file(name).unlink(missing_ok=True)
            held.close()

    def close(self) -> None:
        for name in list(self._held):
            self.release(name)

    def _file(self, name: str) -> Path:
        return self._database.with_name(f"{self._database.name}.{name}.lock")


def _lock(opened: IO[str]) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_there(opened: IO[str], file: Path) -> bool:
    """Whoever held it may have removed it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(opened.fileno()), file.stat())
    return False


class DatabaseClaims:
    """Implements `Claims` by PostgreSQL's advisory locks, which belong to one connection."""

    def __init__(self, engine: Engine) -> None:
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._held: set[str] = set()

    def take(self, name: str) -> bool:
        if name in self._held or not self._ask("pg_try_advisory_lock", name):
            return False
        self._held.add(name)
        return True

    def release(self, name: str) -> None:
        if name in self._held:
            self._held.remove(name)
            with contextlib.suppress(DBAPIError, StoreError):  # a connection that is gone holds nothing
                self._ask("pg_advisory_unlock", name)

    def close(self) -> None:
        for name in list(self._held):
            self.release(name)
        self._connection.close()

    def _ask(self, function: str, name: str) -> bool:
        query = f"SELECT {function}(hashtextextended(%s, 0))"
        return bool(self._connection.exec_driver_sql(query, (f"evenflow {name}",)).scalar())


@contextlib.contextmanager
def claims_of(location: DatabaseLocation, engine: Engine) -> Iterator[Claims]:
    """What this process holds while the block runs. Raises: StoreError."""
    claims = DatabaseClaims(engine) if location.file is None else FileClaims(location.file)
    try:
        yield claims
    finally:
        claims.close()
