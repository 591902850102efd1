"""What Locust runs: a schedule to play, or users to watch in its web page.

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8080              users, from the web page
    locust -f loadtests/locustfile.py --host … --profile ambush                 a profile, from the page
    locust -f loadtests/locustfile.py --host … --headless -u 8 -t 1m --result seen.json

With `--job FILE` (written by `loadtests.run`) the job's schedule is played and the process ends. With
`--processes`, or `--master` and `--worker`, each request is sent by one of the load processes and the result
holds what all of them saw. Locust starts, shows and stops; it computes nothing of ours, because its
percentiles come from a coarse histogram and its response time of a stream is the time to the headers.
"""

# Locust is followed as untyped (it is imported nowhere else), so its base classes and decorators are Any.
# mypy: disable-error-code="untyped-decorator,misc"

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import secrets
import sys
import time
from typing import Any

import gevent
from locust import User, events, task
from locust.runners import MasterRunner, WorkerRunner

from engine.core.records import Outcome
from engine.core.slo import parse_duration
from loadtests.client.sse_client import ChatStream
from loadtests.errors import LoadTestError
from loadtests.play.load_process import LoadProcess, Role
from loadtests.play.player import stream_record
from loadtests.play.real_time import take_real_time
from loadtests.play.sharding import prompt_seed
from loadtests.synthesis.prompts import bodies
from loadtests.traffic.schedule import ScheduledRequest

_numbers = itertools.count()  # of this process's users


@events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    parser.add_argument("--job", default="", include_in_web_ui=False, help="play this job file and end")
    parser.add_argument("--result", default="", include_in_web_ui=False, help="where all records go, as JSON")
    parser.add_argument(
        "--real-time",
        action="store_true",
        include_in_web_ui=False,
        env_var="EVENFLOW_REAL_TIME",
        help="run before all other programs (Linux, as root), so that a busy machine delays no request",
    )
    parser.add_argument("--api-key-file", default="", help="its first key is sent as a bearer token")
    parser.add_argument(
        "--slo-pause", type=_seconds, default=0.5, help="drawn as a line, and what profiles are sized for"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="of all that is drawn")
    for kind, prompt, answer in (("chat", 80, 80), ("long", 900, 16)):
        parser.add_argument(f"--{kind}-prompt-tokens", type=int, default=prompt, help=f"of {kind} users")
        parser.add_argument(f"--{kind}-max-tokens", type=int, default=answer, help=f"of {kind} users")
    with contextlib.suppress(argparse.ArgumentError):  # Locust has one, to group runs by; it is read as ours
        parser.add_argument("--profile", default="", help="play this traffic profile instead of users")


def _seconds(text: str) -> float:
    """As everywhere, `0.5s`; what comes from the page is in seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@events.init.add_listener
def _join(environment: Any, runner: Any, web_ui: Any, **_: Any) -> None:
    roles = ((MasterRunner, Role.MASTER), (WorkerRunner, Role.WORKER))
    role = next((role for kind, role in roles if isinstance(runner, kind)), Role.ALONE)
    process = environment.evenflow = LoadProcess(environment, role, web_ui)
    environment.events.test_start.add_listener(lambda **_: process.begin())
    environment.events.test_stopping.add_listener(lambda **_: process.stop())
    environment.events.test_stop.add_listener(lambda **_: process.end())
    environment.events.quit.add_listener(lambda **_: process.end())
    if environment.parsed_options.real_time:
        try:
            take_real_time()
        except LoadTestError as error:
            sys.exit(str(error))
    if environment.parsed_options.job:
        gevent.get_hub().threadpool.spawn(_end_with_parent)


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone: its end of our standard input closes."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(3)


class _StreamingUser(User):
    """Asks, reads the whole answer, thinks, asks again."""

    abstract = True
    name = ""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._process: LoadProcess = environment.evenflow
        self._place = (environment.runner.worker_index, next(_numbers))
        self._turns = itertools.count()
        self._random = random.Random(f"{self._process.options.seed}/{self._place}")

    def wait_time(self) -> float:
        return self._random.uniform(1.0, 3.0)

    @task
    def ask(self) -> None:
        if self._process.plays_job:
            gevent.sleep(1.0)
            return
        request = self._request()
        record = {"id": request.id, "kind": self.name, "at_s": 0.0}
        try:
            stream = self._stream(request)
        except LoadTestError as error:
            self._say_nothing_came(record, str(error))
            return
        t0_ns = time.perf_counter_ns()
        try:
            stream.run()
        except gevent.GreenletExit:
            stream.leave(Outcome.UNFINISHED)
            raise
        finally:
            self._saw(stream_record(record, stream, t0_ns))

    def _request(self) -> ScheduledRequest:
        options, turn = self._process.options, next(self._turns)
        return ScheduledRequest(
            id="-".join(map(str, (self.name, *self._place, turn))),
            at_s=0.0,
            prompt_tokens=getattr(options, f"{self.name}_prompt_tokens"),
            max_tokens=getattr(options, f"{self.name}_max_tokens"),
            prompt_seed=prompt_seed(*self._place, turn),
            kind=self.name,
        )

    def _stream(self, request: ScheduledRequest) -> ChatStream:
        """Raises: LoadTestError: the server does not answer."""
        server = self._process.server()
        prompt = server.book.prompt(request, str(self._process.options.seed))
        body = bodies([request], {request.id: prompt}, server.target, server.model)[request.id]
        stream = ChatStream(server.target.url, server.target.request_headers(), json.dumps(body).encode())
        stream.connect()
        return stream

    def _say_nothing_came(self, record: dict[str, Any], why: str) -> None:
        never = {"outcome": Outcome.NEVER_SENT, "scheduled_at_s": 0.0, "ended_at_s": 0.0, "events": []}
        self._saw({**record, **never, "output_tokens": 0, "error": why})

    def _saw(self, record: dict[str, Any]) -> None:
        assert self._process.hand is not None
        self._process.hand.saw(record)


class ChatUser(_StreamingUser):
    """Short questions."""

    weight = 3
    name = "chat"


class LongPromptUser(_StreamingUser):
    """Pasted documents."""

    weight = 1
    name = "long"
