"""The command line that makes a study anew."""

from __future__ import annotations

import argparse
from decimal import Decimal
from pathlib import Path

from tuner.traffic.offered import is_profile_file

_VALUES = ("engine", "seed", "trials", "simulate", "workers")
_DURATIONS = ("slo_pause", "budget")
_FILES = ("replay", "api_key_file", "admin_key_file")
_SWITCHES = ("fresh", "no_selftest")


def command_again(given: argparse.Namespace) -> tuple[str, ...]:
    """The options of a `tuner optimize` that makes the same study anew, wherever it is typed.

    What is the default now is said too. Left out are the study's name, which would go on with it; the
    database, which whoever shows the command knows; and `--apply` and `--json`, which come after it.
    """
    values = {name: getattr(given, name) for name in _VALUES}
    values |= {name: _seconds(getattr(given, name)) for name in _DURATIONS}
    values |= {name: _absolute(getattr(given, name)) for name in _FILES}
    if not given.replay:
        values["profile"] = _absolute(given.profile) if is_profile_file(given.profile) else given.profile
    if not given.engine:
        values |= {"backend": given.backend, "model": _model(given.model)}
    said = [f"{_option(name)}={value}" for name, value in sorted(values.items()) if value is not None]
    return (*said, *(_option(name) for name in _SWITCHES if getattr(given, name)))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _seconds(duration_s: float) -> str:
    """Every digit and no exponent, which durations do not have."""
    return f"{Decimal(repr(duration_s)).normalize():f}s"


def _absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _model(name: str | None) -> str | None:
    """A name of the hub's stays as it is."""
    folder = Path(name).expanduser() if name else None
    return str(folder.absolute()) if folder and folder.is_dir() else name
