"""Kills `tuner optimize` at random moments and goes on with the study each time.

    python -m tests.benchmarks.kill_resume [--kills 20] [--at-once 1] [--seed 1]

Real processes, the simulated device. Each time: both databases are intact and `tuner show` reads them, every
trial that was said to have ended is there, at most the running one is lost, the killed tuner's engine ends
too, and the same command finishes the study with a winner, as an uninterrupted run does. Studies at once
have a folder each; they hold each other up, which is none of their faults.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.tuner.engines import is_whole, quick_optimize, read_json, run_tuner, start_tuner

_STUDY = "killed"
_ENGINE_GONE_WITHIN_S = 30.0
_ENDED, _SPOILED = ("✓ chunking off", "✓ rule of thumb"), "the load client spoiled a run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="studies at a time (default 1)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        # As many at once as later, for their company makes them slower.
        longest_s = min(pool.map(_whole_run, range(arguments.at_once)))
        print(f"an uninterrupted run takes {longest_s:.0f} s", flush=True)
        moments_s = [rng.uniform(0.0, longest_s) for _ in range(arguments.kills)]
        good = 0
        for number, (shown, faults) in enumerate(pool.map(_kill, moments_s), 1):
            good += not faults
            print(f"{number:>3}  {shown}  {'; '.join(faults) or 'ok'}", flush=True)
    print(f"{good} of {arguments.kills}")
    sys.exit(good != arguments.kills)


def _kill(at_s: float) -> tuple[str, Sequence[str]]:
    """What was killed, and what went wrong. A run that ends before is no kill, and is tried again earlier."""
    while True:
        with tempfile.TemporaryDirectory() as directory:
            words = _run_until_killed(Path(directory), at_s)
            if words is not None:
                faults, done = _go_on(Path(directory), words)
                return f"killed after {at_s:5.1f} s, {done:>2} trials done", faults
        at_s *= 0.9


def _command() -> list[str]:
    return quick_optimize("--json", "--study", _STUDY)


def _whole_run(_: int) -> float:
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        code, _, err = run_tuner(Path(directory), *_command())
    assert code == 0, err
    return time.monotonic() - started_s


def _go_on(home: Path, words: str) -> tuple[list[str], int]:
    """What went wrong, and how many trials had been done."""
    faults = [f"{file.name} is torn" for file in home.glob("*.db") if not is_whole(file)]
    code, out, err = run_tuner(home, "show", _STUDY, "--json")
    before = read_json(out)["trials"] if code == 0 else []
    if code and not _is_missing(err):
        faults.append(f"cannot be read: {err.strip()}")
    done = [trial["number"] for trial in before if trial["status"] != "running"]
    if (said := num_ended(words)) > len(done):
        faults.append(f"{said} trials had ended, {len(done)} of them are kept")
    if len(before) - len(done) > 1:
        faults.append(f"{len(before) - len(done)} trials were running")
    if (url := _engine_of(words)) and not _is_gone(url):
        faults.append("its engine outlived it")
    return faults + _resume(home, done), len(done)


def _is_missing(err: str) -> bool:
    """Nothing was there yet: right as long as no trial had ended."""
    return "there is no" in err or "is empty" in err


def num_ended(words: str) -> int:
    """How many trials had ended at least, by what the tuner said on standard error: the known points' and
    those that were spoiled have a line each.
    """
    lines = words.splitlines()
    return sum(line.startswith(_ENDED) or _SPOILED in line for line in lines)


def _run_until_killed(home: Path, at_s: float) -> str | None:
    """What it said on standard error; None when it ended before."""
    with start_tuner(home, *_command()) as process:
        try:
            process.communicate(timeout=at_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            return process.communicate()[1]
    return None


def _resume(home: Path, done: list[int]) -> list[str]:
    code, out, err = run_tuner(home, *_command())
    if code:
        print(err, file=sys.stderr, flush=True)
        return [f"did not go on: {(err.strip().splitlines() or [''])[-1]} (status {code})"]
    faults = [] if read_json(out)["study"] == _STUDY else ["another study"]
    after: list[dict[str, Any]] = read_json(run_tuner(home, "show", _STUDY, "--json")[1])["trials"]
    by_number = {trial["number"]: trial["status"] for trial in after}
    if any(by_number.get(number) in (None, "lost", "running") for number in done):
        faults.append("a trial that was done is lost")
    if list(by_number.values()).count("lost") > 1 or "running" in by_number.values():
        faults.append("more than the running trial is lost")
    return faults + [f"{file.name} is torn" for file in home.glob("*.db") if not is_whole(file)]


def _engine_of(words: str) -> str | None:
    started = [line for line in words.splitlines() if "engine started" in line]
    return started[0].split()[-1] if started else None


def _is_gone(url: str) -> bool:
    until_s = time.monotonic() + _ENGINE_GONE_WITHIN_S
    while time.monotonic() < until_s:
        try:
            httpx.get(f"{url}/health", timeout=2.0)
        except httpx.ConnectError:
            return True
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    return False


if __name__ == "__main__":
    main()
