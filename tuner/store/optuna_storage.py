"""Optuna's own database, beside ours and touched only through Optuna."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from tuner.errors import StoreError
from tuner.paths import DatabaseLocation
from tuner.store.database import explain
from tuner.store.postgresql import connect_arguments, making

_SCHEMA = "evenflow_optuna"


def open_optuna(location: DatabaseLocation) -> Any:
    """Optuna's storage.

    Raises:
        StoreError: the file is not Optuna's, or cannot be written.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if location.file is None:
            return _open_postgresql(location.optuna_url)
        _set_wal(Path(location.optuna_url.removeprefix("sqlite:///")))
        return optuna.storages.RDBStorage(
            location.optuna_url, engine_kwargs={"connect_args": {"timeout": 20.0}}
        )
    except (sqlite3.Error, SQLAlchemyError, RuntimeError, ValueError) as error:
        first = str(getattr(error, "orig", None) or error).split("\n")[0]
        shown = f"Optuna's tables in {location.shown}" if location.file is None else location.optuna_url
        raise StoreError(f"cannot use {shown}: {first}; choose another --db") from error


@contextlib.contextmanager
def explained(location: DatabaseLocation) -> Iterator[None]:
    """Says what is wrong with Optuna's tables when the block cannot use them. Raises: StoreError."""
    try:
        yield
    except optuna.exceptions.StorageInternalError as error:
        raise StoreError(explain(location, error.__cause__ or error)) from error


def _open_postgresql(url: str) -> Any:
    arguments = connect_arguments(_SCHEMA)
    engine = create_engine(url, connect_args=arguments)
    try:
        with making(engine, _SCHEMA):
            return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": arguments})
    finally:
        engine.dispose()


def _set_wal(file: Path) -> None:
    """Write-ahead logging persists in the file; without it readers and the writer lock each other out."""
    connection = sqlite3.connect(file, timeout=5.0)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()
