"""What is different about PostgreSQL: schemas of one database instead of two files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine

_CONNECT_WITHIN_S = 10
# Makers of one schema or its tables wait for one another: PostgreSQL's IF NOT EXISTS does not.
_MAKING = 0x45564E46


def connect_arguments(schema: str) -> dict[str, Any]:
    """Of psycopg: every name without a schema is in this one; a machine that is gone is noticed."""
    alive = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    return {"options": f"-csearch_path={schema}", "connect_timeout": _CONNECT_WITHIN_S, **alive}


@contextlib.contextmanager
def making(engine: Engine, schema: str) -> Iterator[None]:
    """The schema is there, and nobody else makes tables in it while the block runs.

    Raises:
        sqlalchemy.exc.DBAPIError: no server answers, or this user may not make a schema.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({_MAKING})")
        try:
            there = connection.exec_driver_sql(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'")
            if there.first() is None:
                connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
            yield
        finally:
            connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_MAKING})")
