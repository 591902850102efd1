"""Where the tuner keeps its files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import UsageError

_FILE = "evenflow.db"
_POSTGRESQL = re.compile(r"postgres(ql)?(\+psycopg)?://")


def state_dir() -> Path:
    """`$EVENFLOW_HOME`, else `evenflow` under the XDG state directory."""
    home = os.environ.get("EVENFLOW_HOME")
    if home:
        return Path(home).expanduser()
    xdg = os.environ.get("XDG_STATE_HOME")
    return Path(xdg).expanduser() / "evenflow" if xdg else _usual_dir()


def _usual_dir() -> Path:
    return Path.home() / ".local" / "state" / "evenflow"


@dataclass(frozen=True, slots=True)
class DatabaseLocation:
    """Our database and Optuna's, which must not share tables.

    Attributes:
        file: our SQLite file; None when both live in schemas of one PostgreSQL database.
    """

    url: str
    optuna_url: str
    file: Path | None

    @property
    def shown(self) -> str:
        """As printed; a URL's password is left out."""
        if self.file is not None:
            return str(self.file)
        return f"postgresql://{self.url.partition('://')[2].rpartition('@')[2]}"

    @property
    def option(self) -> str:
        """What `--db` has to say in another folder and environment; empty for the usual place."""
        if self.file is None:
            return self.shown
        file = self.file.absolute()
        return "" if file == _usual_dir() / _FILE else str(file)


def locate_database(db: str | None) -> DatabaseLocation:
    """The databases that `--db` names; those of the state directory when None. Raises: UsageError."""
    if db and (scheme := _POSTGRESQL.match(db)):
        url = f"postgresql+psycopg://{db[scheme.end() :]}"
        return DatabaseLocation(url, url, None)
    if db and "://" in db and not db.startswith("sqlite:///"):
        raise UsageError(f"--db {db.partition('://')[0]}://…: give a file or a postgresql:// URL")
    file = Path(db.removeprefix("sqlite:///")).expanduser() if db else state_dir() / _FILE
    if not file.name or file.is_dir():
        raise UsageError(f"--db {db or file} is a folder; give a file in it, like {file / _FILE}")
    optuna_file = file.with_name(f"{file.stem}.optuna{file.suffix or '.db'}")
    return DatabaseLocation(f"sqlite:///{file}", f"sqlite:///{optuna_file}", file)
