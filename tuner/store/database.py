"""Opening `evenflow.db`: tables are made once, and never in anybody else's file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, ExceptionContext, event, inspect
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlmodel import Session, SQLModel, create_engine, select

from tuner.errors import StoreError
from tuner.paths import DatabaseLocation
from tuner.store.models import SCHEMA_VERSION, Schema
from tuner.store.postgresql import connect_arguments, making

_SQLITE_MAGIC = b"SQLite format 3\x00"
# A reader never waits in WAL mode; a second writer waits this long for the first's short transaction.
_BUSY_TIMEOUT_S = 5.0
_SCHEMA = "evenflow"


def open_database(location: DatabaseLocation, *, create: bool) -> Engine:
    """The database, its tables made when it is new.

    Args:
        create: False for commands that only read: a missing file is an error then.

    Raises:
        StoreError: missing, locked, unreadable, or not a database of ours.
    """
    if location.file is not None:
        _check_file(location.file, create)
    return _checked(_connect(location), location, create)


def _checked(engine: Engine, location: DatabaseLocation, create: bool) -> Engine:
    event.listen(engine, "handle_error", lambda context: _explained(location, context))
    try:
        with _making(engine, location) if create else contextlib.nullcontext():
            _check_tables(engine, location, create)
    except (DBAPIError, sqlite3.Error) as error:
        engine.dispose()
        raise StoreError(explain(location, error)) from error
    except StoreError:
        engine.dispose()
        raise
    return engine


def open_to_read(location: DatabaseLocation) -> Engine:
    """The database as it is, for commands that write nothing; also where SQLite cannot write its files beside
    it, as long as nobody works on it.

    Raises:
        StoreError: missing, unreadable, or not a database of ours.
    """
    try:
        return open_database(location, create=False)
    except StoreError as error:
        if location.file is None or not _is_still(location.file, error.__cause__):
            raise
    connect = partial(_connect_immutable, location.file)
    return _checked(create_engine("sqlite://", creator=connect, poolclass=NullPool), location, create=False)


def _is_still(file: Path, error: BaseException | None) -> bool:
    """Whether what failed may be that a reader, too, writes beside a file that has no writer."""
    log = file.with_name(f"{file.name}-wal")
    return isinstance(error, DBAPIError | sqlite3.Error) and not (log.exists() and log.stat().st_size)


def _connect_immutable(file: Path) -> sqlite3.Connection:
    uri = f"{file.absolute().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, check_same_thread=False)


def _explained(location: DatabaseLocation, context: ExceptionContext) -> StoreError | None:
    """What is raised in place of SQLAlchemy's error, wherever the database is used."""
    error = context.sqlalchemy_exception
    # A damaged file is the base class itself; its other kinds are faults of ours.
    is_its_own = isinstance(error, OperationalError) or type(error) is DatabaseError
    return StoreError(explain(location, error)) if error and is_its_own else None


def _check_file(file: Path, create: bool) -> None:
    if not file.exists():
        if not create:
            raise StoreError(f"there is no database {file}; run tuner optimize first, or name one with --db")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {file.parent}: {error.strerror}; choose another --db") from error
        return
    try:
        with file.open("rb") as opened:
            head = opened.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror}; choose another --db") from error
    if head and head != _SQLITE_MAGIC:
        raise StoreError(f"{file} is not a SQLite database; choose another --db")


def _connect(location: DatabaseLocation) -> Engine:
    if location.file is None:
        try:
            return create_engine(location.url, connect_args=connect_arguments(_SCHEMA))
        except ImportError as error:
            message = (
                f"{location.shown} needs psycopg: pip install 'psycopg[binary]', or choose a file as --db"
            )
            raise StoreError(message) from error
        except (ValueError, SQLAlchemyError) as error:
            raise StoreError(f"cannot use {location.shown}: {_first_line(error)}") from error
    engine = create_engine(
        location.url, connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False}
    )
    event.listen(engine, "connect", _set_pragmas)
    return engine


@contextlib.contextmanager
def _making(engine: Engine, location: DatabaseLocation) -> Iterator[None]:
    """Nobody else makes tables while the block runs."""
    if location.file is None:
        with making(engine, _SCHEMA):
            yield
        return
    directory = os.open(location.file.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _set_pragmas(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _check_tables(engine: Engine, location: DatabaseLocation, create: bool) -> None:
    tables = set(inspect(engine).get_table_names())
    if Schema.__tablename__ in tables:
        with Session(engine) as session:
            version = session.exec(select(Schema.version)).first()
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{location.shown} has layout {version}, this tuner writes {SCHEMA_VERSION}; "
                "choose another --db"
            )
        return
    if tables:
        shown = ", ".join(sorted(tables)[:3])
        raise StoreError(f"{location.shown} belongs to something else (tables {shown}); choose another --db")
    if not create:
        raise StoreError(f"{location.shown} is empty; run tuner optimize first")
    _make_tables(engine, location)


def _make_tables(engine: Engine, location: DatabaseLocation) -> None:
    if location.file is not None:
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            connection.commit()
    SQLModel.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Schema(version=SCHEMA_VERSION))
        session.commit()


def explain(location: DatabaseLocation, error: BaseException) -> str:
    """What is wrong with the database, and what to do."""
    text = _first_line(error)
    if "disk is full" in text:
        return f"{location.shown} cannot grow: the disk is full; make room there or choose another --db"
    if "malformed" in text:
        return f"{location.shown} is damaged ({text}); put a copy in its place or choose another --db"
    if location.file is not None and not os.access(location.file.parent, os.W_OK):
        return (
            f"nothing can be written beside {location.file}, as SQLite must; copy it or choose another --db"
        )
    if isinstance(error, OperationalError) and "locked" in text:
        return f"{location.shown} is locked by another program; close it or choose another --db"
    return f"cannot use {location.shown}: {text}; choose another --db"


def _first_line(error: BaseException) -> str:
    origin = getattr(error, "orig", None) or error
    return str(origin).strip().split("\n")[0] or type(error).__name__


def check_writable(engine: Engine, location: DatabaseLocation) -> None:
    """Fails now rather than after the first trial.

    Raises:
        StoreError: the database is locked or read-only.
    """
    try:
        with engine.connect() as connection:
            if location.file is not None:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                connection.rollback()
    except (DBAPIError, sqlite3.Error) as error:
        raise StoreError(explain(location, error)) from error
