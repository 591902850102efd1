"""One load process's part in Locust's runs: what it plays, shows and writes."""

from __future__ import annotations

import gc
import json
import logging
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import gevent

from engine.core.records import Outcome
from loadtests.client.target import Target, first_key, model_card
from loadtests.errors import LoadRunError, LoadTestError
from loadtests.play.job import make_job
from loadtests.play.quick_size import size_up
from loadtests.play.sharding import LOST, Job
from loadtests.play.stream_stats import Board, Row
from loadtests.play.web_page import extend
from loadtests.play.workers import Conductor, Hand
from loadtests.synthesis.prompts import PromptBook
from loadtests.traffic.profiles import load_profile
from loadtests.traffic.trace_profiles import schedule_of

_OWN = "evenflow"  # who owns the models of our own engine


class Role(Enum):
    """What this process is to the others: everything, or one side of a distributed run."""

    ALONE = "alone"
    MASTER = "master"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Server:
    """The server under test, as users speak to it."""

    target: Target
    model: str
    book: PromptBook


class LoadProcess:
    """A load process between its start and its end.

    Args:
        environment: Locust's; its runner is there already.
        web_ui: Locust's page; None without one.
    """

    def __init__(self, environment: Any, role: Role, web_ui: Any) -> None:
        self.options = environment.parsed_options
        self._environment = environment
        self._runner = environment.runner
        self._board = Board()
        self._records: list[Mapping[str, Any]] = []
        self._server: Server | None = None
        self._role = role
        self._is_on = False
        self.hand = Hand(self._runner, self.show, self._keeps_records) if role is not Role.MASTER else None
        self._conductor = (
            Conductor(self._runner, self._workers, self._hear) if role is not Role.WORKER else None
        )
        if web_ui is not None:
            extend(web_ui, self._board, self.options)

    @property
    def plays_job(self) -> bool:
        """Users stand by. The master's options reach its workers before its users do."""
        return bool(getattr(self.options, "plays_job", False))

    def server(self) -> Server:
        """Raises: LoadTestError: it does not answer, or the key file cannot be read."""
        host = self._environment.host or ""
        if self._server is None or self._server.target.url != host.rstrip("/").removesuffix("/v1"):
            key_file = self.options.api_key_file
            target = Target(host, api_key=first_key(_read(key_file)) if key_file else None)
            card = model_card(target)
            if card.get("owned_by") != _OWN:
                target = Target(host, api_key=target.api_key, foreign=True)
            self._server = Server(target, str(card["id"]), PromptBook(target))
        return self._server

    def begin(self) -> None:
        """A test starts."""
        self._is_on = True
        self._board.clear()
        self._records.clear()
        gc.collect()
        gc.freeze()  # what is here now need not be searched again, while streams are read
        if self._conductor is not None:
            self._conductor.meet()
            self.options.plays_job = bool(self.options.job or self.options.profile)
            if self.plays_job:
                gevent.spawn(self._play, self._conductor).link_exception(self._broke)

    def stop(self) -> None:
        """A test is about to stop: first a job that is being played, and the users of other processes."""
        self._is_on = False
        if self._conductor is not None:
            self._conductor.stop()
            if self._role is Role.MASTER:
                num_lost = self._conductor.gather()
                if not self.plays_job:  # which says itself who was lost
                    self._say_lost(num_lost, "had not told is missing")

    def end(self) -> None:
        """A test has stopped: what users saw is written; a job's result is when it has been played."""
        if self.hand is not None:
            self.hand.leave()
        if self._conductor is not None and self._keeps_records() and not self.plays_job:
            try:
                self._write({"records": self._records})
            except LoadTestError as error:
                self._fail(str(error))

    def show(self, row: Row, record: Mapping[str, Any]) -> None:
        """A row in Locust's statistics for TTFT, in milliseconds, and one for the worst pause. That one stays
        out of the sums, so that no request counts twice and Locust's own charts are those of TTFT.
        """
        ttft_s, pause_s = row["ttft_s"], row["worst_pause_s"]
        waited_s = record["ended_at_s"] - record.get("scheduled_at_s", 0.0) if ttft_s is None else ttft_s
        self._environment.events.request.fire(
            request_type="TTFT",
            name=row["kind"],
            response_time=waited_s * 1000,
            response_length=record.get("output_tokens", 0),
            exception=(record.get("error") or record["outcome"]) if row["failed"] else None,
            context={},
        )
        if pause_s is not None:
            self._environment.stats.get(row["kind"], "worst pause").log(pause_s * 1000, 0)

    def _keeps_records(self) -> bool:
        return bool(self.options.result)

    def _workers(self) -> list[str]:
        if self._role is Role.ALONE:
            return ["local"]
        clients = self._runner.clients
        return [client.id for client in clients.ready + clients.spawning + clients.running]

    def _hear(self, rows: Sequence[Row], records: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            self._board.add(time.monotonic(), row)
        if self._keeps_records() and not self.plays_job:
            self._records += records

    def _play(self, conductor: Conductor) -> None:
        try:
            job = self._job()
            if self._is_on:  # it may have been stopped while the server was sized up
                result = conductor.play(job, _say if self.options.job else _say_nothing)
                self._show_unplayed(job, result)
                self._write(result)
        except LoadTestError as error:
            self._fail(str(error))
        self._finish()

    def _broke(self, playing: gevent.Greenlet) -> None:
        self._fail(f"the load client broke: {playing.exception!r}")
        self._finish()

    def _finish(self) -> None:
        if self.options.headless:
            self._runner.quit()
        else:
            self._runner.stop()

    def _job(self) -> Job:
        """Raises: LoadTestError: there is no such profile, or the server cannot be sized up."""
        if self.options.job:
            job: Job = json.loads(_read(self.options.job))
            return job
        server = self.server()
        profile = load_profile(self.options.profile)
        sizing = size_up(server.target, server.book, self.options.slo_pause)
        schedule = schedule_of(profile, self.options.seed, sizing)
        prompts = server.book.prompts(schedule, secrets.token_hex(4))
        return make_job(schedule, server.target, prompts)

    def _show_unplayed(self, job: Job, result: Mapping[str, Any]) -> None:
        """What no process could show: requests never sent, or lost with the process that had sent them."""
        kinds = {request["id"]: request["kind"] for request in job["requests"]}
        for record in result["records"]:
            if record["outcome"] == Outcome.NEVER_SENT or record.get("error") == LOST:
                row = {"kind": kinds[record["id"]], "failed": True, "ttft_s": None, "worst_pause_s": None}
                self.show(row, record)
        self._say_lost(result["num_lost"], "had not finished counts as failed")

    def _say_lost(self, num_processes: int, what: str) -> None:
        """A job's result says it, and whoever wrote the job judges it."""
        if num_processes:
            logging.error("%d of the load processes died; what they %s", num_processes, what)
            if not self.options.job:
                self._environment.process_exit_code = 1

    def _fail(self, line: str) -> None:
        logging.error(line)
        self._runner.log_exception("load client", line, "")
        self._environment.process_exit_code = 1

    def _write(self, result: Mapping[str, Any]) -> None:
        """Raises: LoadTestError: the file cannot be written."""
        if not self._keeps_records():
            return
        try:
            Path(self.options.result).write_text(json.dumps(result), encoding="utf-8")
        except OSError as error:
            raise LoadRunError(f"{self.options.result} cannot be written: {error.strerror}") from None


def _say(progress: Mapping[str, Any]) -> None:
    print(json.dumps({"progress": progress}), file=sys.stdout, flush=True)


def _say_nothing(_: Mapping[str, Any]) -> None:
    """Locust's page shows it."""


def _read(path: str) -> str:
    """Raises: LoadTestError: it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise LoadRunError(f"{path} cannot be read: {error.strerror}") from None
