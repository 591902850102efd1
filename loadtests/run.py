"""Runs a schedule against a server: Locust as a child process, raw records back.

A child, because importing Locust patches the whole process; one per run, because it starts in a third of a
second (measured in November 2026) and leaves nothing behind for the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from engine.core.records import RequestRecord
from loadtests.client.target import Target, as_target
from loadtests.errors import LoadRunError
from loadtests.parity import Parity, compare_lengths
from loadtests.play.job import make_job, read_record
from loadtests.scratch import scratch_folder
from loadtests.synthesis.prompts import Prompt, PromptBook
from loadtests.traffic.schedule import Schedule
from loadtests.validity import Validity, judge

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_SPARE_S = 60.0  # start and end of the child, beyond the schedule and its drain
DEFAULT_SLO_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands; `worst_pause_s` counts open gaps too."""

    num_sent: int
    num_ended: int
    num_requests: int
    worst_pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a run saw.

    Attributes:
        records: one per scheduled request, in schedule order.
        aborted_at_s: when the run stopped itself because a pause passed `abort_pause_s`; its records are
            lower bounds, and what had not arrived yet is `never_sent`.
        exact_prompts: prompts were made for the target's own tokenizer.
        parity: how many lengths were as planned.
        notes: what kept prompts from being what the schedule says, one line each.
    """

    records: tuple[RequestRecord, ...]
    validity: Validity
    aborted_at_s: float | None
    exact_prompts: bool
    parity: Parity
    elapsed_s: float
    notes: tuple[str, ...] = ()

    @property
    def aborted(self) -> bool:
        return self.aborted_at_s is not None


def run_load(
    schedule: Schedule,
    target: Target | str,
    *,
    workdir: Path | None = None,
    book: PromptBook | None = None,
    abort_pause_s: float | None = None,
    grace_s: float | None = None,
    slo_pause_s: float = DEFAULT_SLO_PAUSE_S,
    expected_generation: int | None = None,
    retries: int = 0,
    salt: str | None = None,
    num_processes: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> LoadResult:
    """Plays `schedule` once and waits for the end of its drain.

    Args:
        workdir: the raw result and the child's messages stay here; None keeps nothing.
        book: keeps the target's tokenizer (and the prompts of one salt) over runs; None makes one.
        abort_pause_s: stop as soon as a gap of a measured stream, even an open one, is longer.
        grace_s: of the drain; None takes the schedule's.
        slo_pause_s: the validity gate's limits are shares of it.
        expected_generation: the config generation every response has to carry.
        retries: how often every refused request is sent again at least, after the server's `Retry-After`.
        salt: of the prompts' words; None draws a fresh one, so that lengths and times repeat from run to run
            but nothing is found in the server's prefix cache that this run did not put there.
        num_processes: load processes that share the schedule, each request sent by one of them.
        on_progress: called about twice a second, on the caller's thread.

    Raises:
        TargetError: the server does not answer.
        LoadRunError: the load client failed.
    """
    target = as_target(target)
    book = book or PromptBook(target)
    prompts = book.prompts(schedule, secrets.token_hex(4) if salt is None else salt)
    job = make_job(schedule, target, prompts, abort_pause_s=abort_pause_s, grace_s=grace_s, retries=retries)
    with _directory(workdir) as directory:
        raw = _run_child(job, directory, num_processes, on_progress)
    return _result(schedule, raw, prompts, book, slo_pause_s, expected_generation)


def _result(
    schedule: Schedule,
    raw: Mapping[str, Any],
    prompts: Mapping[str, Prompt],
    book: PromptBook,
    slo_pause_s: float,
    expected_generation: int | None,
) -> LoadResult:
    """Args: raw: what the child measured."""
    records = tuple(
        read_record(request, prompts[request.id].tokens, one)
        for request, one in zip(schedule.requests, raw["records"], strict=True)
    )
    validity = judge(
        schedule,
        records,
        loop_lags_s=raw["loop_lags_s"],
        slo_pause_s=slo_pause_s,
        cpu_share=raw["cpu_share"],
        expected_generation=expected_generation,
        aborted=raw["aborted_at_s"] is not None,
        num_lost=raw["num_lost"],
    )
    return LoadResult(
        records=records,
        validity=validity,
        aborted_at_s=raw["aborted_at_s"],
        exact_prompts=book.is_exact,
        parity=compare_lengths(records),
        notes=book.notes,
        elapsed_s=raw["elapsed_s"],
    )


@contextlib.contextmanager
def _directory(workdir: Path | None) -> Iterator[Path]:
    if workdir is None:
        with scratch_folder("evenflow-load-") as folder:
            yield folder
    else:
        workdir.mkdir(parents=True, exist_ok=True)
        yield workdir.resolve()


def _run_child(
    job: Mapping[str, Any],
    directory: Path,
    num_processes: int,
    on_progress: Callable[[Progress], None] | None,
) -> dict[str, Any]:
    job_file, result_file, log_file = (directory / name for name in ("job.json", "result.json", "client.log"))
    result_file.unlink(missing_ok=True)
    limit_s, started_s = job["duration_s"] + job["grace_s"] + _SPARE_S, time.monotonic()
    with (
        _private_file(job_file, json.dumps(job)),
        log_file.open("wb") as log,
        _child(job_file, result_file, job["url"], num_processes, log, limit_s) as child,
    ):
        _follow(child, len(job["requests"]), on_progress)
        status = child.wait()
    if status == -signal.SIGKILL and time.monotonic() - started_s >= limit_s:
        raise LoadRunError(
            f"the load client had not ended after {limit_s:.0f} s; was this machine suspended?"
        )
    if status < 0:
        name = signal.Signals(-status).name
        raise LoadRunError(f"the load client was ended from outside ({name}); was memory short?")
    if status != 0:
        raise LoadRunError(f"the load client ended with status {status}: {_last_words(log_file)}")
    if not result_file.exists():  # what it said last is Locust's table
        raise LoadRunError("the load client was stopped before it had a result")
    result: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
    return result


@contextlib.contextmanager
def _private_file(path: Path, content: str) -> Iterator[None]:
    """A file that only its owner reads, and only for a while: it holds the API key."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    try:
        path.write_text(content, encoding="utf-8")
        yield
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _child(
    job_file: Path, result_file: Path, url: str, num_processes: int, log: Any, limit_s: float
) -> Iterator[subprocess.Popen[str]]:
    """The load client. It holds our pipe as its standard input and ends when that closes, so neither
    Ctrl-C here nor a kill of this process leaves it behind; a session of its own keeps a terminal's
    Ctrl-C from it.
    """
    command = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), "--headless", "--only-summary"]
    command += ["--loglevel", "WARNING", "--users", "1", "--host", url, "--exit-code-on-error", "0"]
    command += ["--job", str(job_file), "--result", str(result_file), *_sharing(num_processes)]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
        cwd=job_file.parent,  # Locust reads a locust.conf or pyproject.toml of the directory it runs in
        env={name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")},
    )
    timer = Timer(limit_s, child.kill)
    timer.daemon = True
    timer.start()
    try:
        yield child
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


def _sharing(num_processes: int) -> list[str]:
    """Locust's options for several load processes, which meet at a port of their own."""
    if num_processes == 1:
        return []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    meet = ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
    return ["--processes", str(num_processes), *meet]


def _follow(
    child: subprocess.Popen[str], num_requests: int, on_progress: Callable[[Progress], None] | None
) -> None:
    """Reads the child's lines until it ends; its other output is Locust's and is not ours to read."""
    assert child.stdout is not None
    for line in child.stdout:
        if on_progress is not None and line.startswith('{"progress"'):
            said = json.loads(line)["progress"]
            on_progress(Progress(said["sent"], said["ended"], num_requests, said["worst_pause_s"]))


def _last_words(log_file: Path) -> str:
    lines = log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"
