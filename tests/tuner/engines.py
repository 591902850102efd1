"""Real engines over the simulated device, and `tuner` as a user starts it: processes on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QUICK_PROFILE = Path(__file__).with_name("quick.yaml")
_ENGINE = [sys.executable, "-c", "from engine.cli import main; main()", "serve", "--backend", "sim"]
_TUNER = [sys.executable, "-m", "tuner.cli"]


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
            process.wait(30)


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
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def quick_optimize(*more: str) -> list[str]:
    """Arguments for a study of a few seconds a run."""
    traffic = ["--slo-pause", "0.3s", "--profile", str(QUICK_PROFILE), "--backend", "sim"]
    effort = ["--trials", "1", "--simulate", "20", "--no-selftest", "--budget", "10m"]
    return ["optimize", *traffic, *effort, *more]


def read_json(out: str) -> Any:
    """The one object on standard output; NaN and infinity are no JSON."""
    return json.loads(out, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
