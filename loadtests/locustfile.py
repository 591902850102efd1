"""What Locust runs: a schedule to play, or users to watch in its web page.

By hand, with users that come and go as Locust's page says:

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8080

With `--job FILE` (written by `loadtests.run`) one user plays that job's schedule and the process ends. Locust
starts, shows and stops; it computes nothing of ours, because its percentiles come from a coarse histogram
and its response time of a stream is the time to the headers.
"""

# Locust is followed as untyped (it is imported nowhere else), so its base classes and decorators are Any.
# mypy: disable-error-code="untyped-decorator,misc"

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent
from locust import User, between, events, task

from loadtests.player import Player, stream_record
from loadtests.prompts import PromptBook, bodies
from loadtests.schedule import ScheduledRequest
from loadtests.sse_client import ChatStream
from loadtests.target import Target, first_key, model_name

_PROGRESS_EVERY_S = 0.5


@events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    parser.add_argument("--job", default="", include_in_web_ui=False, help="play this job file and end")
    parser.add_argument("--result", default="", include_in_web_ui=False, help="where the job's result goes")
    parser.add_argument("--api-key-file", default="", help="its first key is sent as a bearer token")
    parser.add_argument("--long-prompt-tokens", type=int, default=900, help="of the users with long prompts")


@events.init.add_listener
def _choose_users(environment: Any, **_: Any) -> None:
    has_job = bool(environment.parsed_options.job)
    environment.user_classes = [ScheduleUser] if has_job else [ChatUser, LongPromptUser]


def _read_key(path: str) -> str | None:
    return first_key(Path(path).read_text(encoding="utf-8")) if path else None


class ScheduleUser(User):
    """Plays one job and ends the process."""

    fixed_count = 1

    @task
    def play(self) -> None:
        options = self.environment.parsed_options
        job = json.loads(Path(options.job).read_text(encoding="utf-8"))
        kinds = {request["id"]: request["kind"] for request in job["requests"]}
        player = Player(job, lambda record: _report(self.environment, kinds[record["id"]], record))
        gevent.get_hub().threadpool.spawn(_end_with_parent)
        progress = gevent.spawn(_tell_progress, player)
        result = player.play()
        progress.kill()
        Path(options.result).write_text(json.dumps(result), encoding="utf-8")
        self.environment.runner.quit()


class _StreamingUser(User):
    """Asks, reads the whole answer, thinks, asks again."""

    abstract = True
    wait_time = between(1, 3)
    prompt_tokens = 80
    max_tokens = 80

    def on_start(self) -> None:
        self._target = Target(
            self.host or "", api_key=_read_key(self.environment.parsed_options.api_key_file)
        )
        self._model, self._book = model_name(self._target), PromptBook(self._target)

    @task
    def ask(self) -> None:
        name = type(self).__name__
        request = ScheduledRequest(
            id=name,
            at_s=0.0,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.max_tokens,
            prompt_seed=random.getrandbits(48),
        )
        body = bodies([request], {name: self._book.prompt(request)}, self._target, self._model)[name]
        stream = ChatStream(self._target.url, self._target.request_headers(), json.dumps(body).encode())
        t0_ns = time.perf_counter_ns()
        stream.run()
        _report(self.environment, name, stream_record({"id": name, "at_s": 0.0}, stream, t0_ns))


class ChatUser(_StreamingUser):
    """Short questions."""

    weight = 3


class LongPromptUser(_StreamingUser):
    """Pasted documents."""

    weight = 1
    max_tokens = 16

    def on_start(self) -> None:
        super().on_start()
        self.prompt_tokens = self.environment.parsed_options.long_prompt_tokens


def _report(environment: Any, kind: str, record: Mapping[str, Any]) -> None:
    """One row per request for TTFT and one for its worst pause, in milliseconds, in Locust's statistics."""
    stamps = [event[0] for event in record["events"]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(stamps)]
    due_s = record["scheduled_at_s"]
    error = RuntimeError(record["error"]) if record["error"] else None
    rows = [("TTFT", stamps[0] - due_s if stamps else record["ended_at_s"] - due_s, error)]
    if gaps:
        rows.append(("worst pause", max(gaps), None))
    for request_type, seconds, exception in rows:
        environment.events.request.fire(
            request_type=request_type,
            name=kind,
            response_time=seconds * 1000,
            response_length=record["output_tokens"],
            exception=exception,
            context={},
        )


def _tell_progress(player: Player) -> None:
    while True:
        line = {"sent": player.num_sent, "ended": player.num_ended, "worst_pause_s": player.worst_gap_s}
        print(json.dumps({"progress": line}), flush=True)
        gevent.sleep(_PROGRESS_EVERY_S)


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone: its end of our standard input closes."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(3)
