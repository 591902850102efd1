"""Real engines over the simulated device, and `tuner` as a user starts it: processes on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.patience import DEADLINE_S

QUICK_PROFILE = Path(__file__).with_name("quick.yaml")
_ENGINE = [sys.executable, "-c", "from engine.cli import main; main()", "serve", "--backend", "sim"]
# No run counts as spoiled because the client was late: a busy machine would make every one three times. What
# spoils one is tested in tests/loadtests/test_validity.py.
_PATIENT_TUNER = """
from loadtests import validity
from tuner.cli import main
validity._MAX_LAG_S = validity._MAX_NOISE_SHARE = 60.0
main()
"""
_TUNER = [sys.executable, "-c", _PATIENT_TUNER]
_STUDY_WITHIN_S = 5 * DEADLINE_S


@contextlib.contextmanager
def sim_engine(directory: Path, *arguments: str) -> Iterator[str]:
    """An engine's URL; it ends with the block."""
    with sim_engine_process(directory, *arguments) as (_, url):
        yield url


@contextlib.contextmanager
def sim_engine_process(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An engine and its URL; it ends with the block, unless it is killed."""
    command = [*_ENGINE, "--port", "0", "--announce", "--state-dir", str(directory), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process, str(json.loads(process.stdout.readline())["url"])
        finally:
            process.stdin.close()
            process.wait(DEADLINE_S)


def start_tuner(home: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command, running, with `home` as its state directory."""
    environment = {**os.environ, "EVENFLOW_HOME": str(home)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*_TUNER, *arguments], env=environment, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True
    )


def run_tuner(home: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    with start_tuner(home, *arguments) as process:
        out, err = process.communicate(timeout=_STUDY_WITHIN_S)
    return process.returncode, out, err


def quick_optimize(*more: str) -> list[str]:
    """Arguments for a study of a few seconds a run."""
    traffic = ["--slo-pause", "0.25s", "--profile", str(QUICK_PROFILE), "--backend", "sim"]
    effort = ["--trials", "1", "--simulate", "20", "--no-selftest", "--budget", "10m"]
    return ["optimize", *traffic, *effort, *more]


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """The first line of standard error that holds `words`."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        if words in line:
            return line
        seen.append(line)
    raise AssertionError(f"{words!r} was never said: {seen}")


def end_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Standard output and standard error, what was read of them already left out."""
    return process.communicate(timeout=_STUDY_WITHIN_S)


def admin(url: str, what: str) -> Any:
    """What an engine's `/admin/...` says."""
    return httpx.get(f"{url}/admin/{what}", timeout=DEADLINE_S).json()


def config_of(url: str) -> dict[str, Any]:
    found: dict[str, Any] = admin(url, "config")["config"]
    return found


def history(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin(url, "config/history")["history"]
    return found


def is_whole(file: Path) -> bool:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return bool(connection.execute("pragma integrity_check").fetchone() == ("ok",))


def read_json(out: str) -> Any:
    """The one object on standard output; NaN and infinity are no JSON."""
    return json.loads(out, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
