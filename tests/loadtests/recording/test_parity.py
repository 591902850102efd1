"""Real sockets and processes: a server that records itself, behind a proxy that records it too."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from engine.core.trace import TraceHeader, TraceRow
from engine.recording.traffic import TrafficRecorder
from engine.sim_backend import SimBackend
from loadtests.traces.files import open_trace
from tests.patience import DEADLINE_S
from tests.server.live import Live

RECORD = [sys.executable, "-c", "from tuner.cli import main; main()", "trace", "record", "--port", "0"]
QUICK = CostModel(0.001, 1e-6, 0.0, 0.002, 0.0, 0.0)
Message = dict[str, str]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    recorder = TrafficRecorder(tmp_path / "own.jsonl")
    config = SchedulerConfig(max_running_requests=3, max_waiting_requests=0)
    with Live(SimBackend(costs=QUICK), config, witnesses=[recorder]) as live:
        yield live
    recorder.close()


@contextlib.contextmanager
def recording(upstream: str, out: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [*RECORD, "--from", upstream, "--out", str(out), "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr
        said = re.search(r"send to (http://127\.0\.0\.1:\d+)", process.stderr.readline())
        assert said
        try:
            with httpx.Client(base_url=said[1], timeout=DEADLINE_S) as http:
                yield process, http
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    said: dict[str, Any] = json.loads(out)
    return said


def rows_of(path: Path) -> tuple[TraceHeader, list[TraceRow]]:
    trace = open_trace(path)
    return trace.header, sorted(trace.rows, key=lambda row: row.t)


class Team:
    """Sends one request after the other; streams may go on meanwhile."""

    def __init__(self, http: httpx.Client, open_streams: contextlib.ExitStack) -> None:
        self._http, self._open = http, open_streams
        self.statuses: list[int] = []

    def ask(self, messages: list[Message], session: str | None = None, **values: Any) -> str:
        """A whole answer's text."""
        headers = {"x-session-id": session} if session else {}
        body = {"messages": messages, "max_tokens": 5, **values}
        response = self._http.post("/v1/chat/completions", json=body, headers=headers)
        self.statuses.append(response.status_code)
        return str(response.json()["choices"][0]["message"]["content"]) if response.status_code == 200 else ""

    def stream(self, messages: list[Message], **values: Any) -> str:
        """A streamed answer's text."""
        body = {"messages": messages, "max_tokens": 6, "stream": True, **values}
        with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            self.statuses.append(response.status_code)
            lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        return "".join(choice["delta"].get("content", "") for choice in choices)

    def begin(self, prompt: str | list[int], max_tokens: int) -> tuple[httpx.Response, Iterator[bytes]]:
        """A stream that has begun, and what is still to come of it."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True}
        response = self._open.enter_context(self._http.stream("POST", "/v1/completions", json=body))
        self.statuses.append(response.status_code)
        pieces = response.iter_raw()
        next(pieces)
        return response, pieces


def talk(team: Team, system: str, user: str, num_turns: int, streams: bool) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"I am {user}"}]
    for number in range(num_turns):
        answer = team.stream(messages, user=user) if streams else team.ask(messages, user=user)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"more {number}"}]


def play(http: httpx.Client, live: Live) -> list[int]:
    """Twenty requests of every kind; the statuses of their answers."""
    system = "You are a careful assistant " * 30
    with contextlib.ExitStack() as open_streams:
        team = Team(http, open_streams)
        _, story = team.begin("a very long story " * 40, 40)
        talk(team, system, "ada", 3, streams=True)
        read_all(story)
        endless = [team.begin(list(range(100)), 50_000)]
        talk(team, system, "bob", 3, streams=False)
        for number in range(3):
            team.ask([{"role": "user", "content": f"question {number}"}], session="s", priority=number)
        talk(team, "other " * 200, "eve", 2, streams=True)
        endless += [team.begin(f"and so on {number} " * 40, 50_000) for number in range(2)]
        team.ask([{"role": "user", "content": "too many"}])
        for response, _ in endless:
            response.close()
        live.until(lambda: live.outcomes().count("aborted") == 3)
        team.stream([{"role": "user", "content": "hi"}], stream_options={"include_usage": True})
        team.stream([{"role": "user", "content": "hi"}], stream_options={"include_timings": True})
        _, another = team.begin("another story " * 40, 9)
        team.ask([{"role": "user", "content": "the same " * 50}])
        read_all(another)
    return team.statuses


def read_all(pieces: Iterator[bytes]) -> None:
    for _ in pieces:
        pass


def shared_blocks(rows: list[TraceRow]) -> list[list[int]]:
    """How many blocks each two prompts begin with in common."""
    return [
        [len(list(itertools.takewhile(_equal, zip(a.prefix, b.prefix, strict=False)))) for b in rows]
        for a in rows
    ]


def _equal(pair: tuple[str, str]) -> bool:
    return pair[0] == pair[1]


def sessions(rows: list[TraceRow]) -> list[tuple[int | None, int | None, int | None]]:
    """Which row's session each row is of, which turn it is there, and which row it follows."""
    ids, names = [row.id for row in rows], [row.session for row in rows]
    return [
        (
            names.index(row.session) if row.session else None,
            row.turn,
            ids.index(row.after) if row.after else None,
        )
        for row in rows
    ]


def test_a_proxy_records_what_the_server_records_of_itself(live: Live, tmp_path: Path) -> None:
    with recording(live.url, tmp_path / "proxy.jsonl") as (process, http):
        statuses = play(http, live)
        live.until(live.is_empty)
        assert end(process)["requests"] == 20
    assert statuses.count(429) == 1
    live.until(lambda: len((tmp_path / "own.jsonl").read_text().splitlines()) == 21)
    (own_header, own), (header, proxied) = (rows_of(tmp_path / name) for name in ("own.jsonl", "proxy.jsonl"))
    assert header.block == own_header.block
    let_in = [index for index, row in enumerate(own) if row.orig and row.orig.status != 429]
    assert [proxied[index].id for index in let_in] == [own[index].id for index in let_in]
    whole = [index for index in let_in if own[index].cancel_s is None]
    assert len(whole) == 16
    for one, other in ((own[index], proxied[index]) for index in whole):
        assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
    for one, other in zip(own, proxied, strict=True):
        assert one.orig
        assert other.orig
        assert (one.prompt_tokens, one.max_tokens) == (other.prompt_tokens, other.max_tokens)
        assert (one.stream, one.priority, one.cached) == (
            other.stream,
            other.priority,
            other.cached or one.cached,
        )
        assert (one.orig.status, one.orig.config) == (other.orig.status, other.orig.config)
        assert (one.cancel_s is None) == (other.cancel_s is None)
        assert not one.stream or (one.orig.ttft_s is None) == (other.orig.ttft_s is None)
    assert shared_blocks(own) == shared_blocks(proxied)
    assert sessions(own) == sessions(proxied)
    assert max(turn or 0 for _, turn, _ in sessions(own)) == 3
    assert [[a.user == b.user for b in own] for a in own] == [
        [a.user == b.user for b in proxied] for a in proxied
    ]


def test_a_client_that_leaves_the_proxy_leaves_the_server(live: Live, tmp_path: Path) -> None:
    with recording(live.url, tmp_path / "proxy.jsonl") as (process, http):
        body = {"prompt": "a", "max_tokens": 100_000, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as response:
            pieces = response.iter_raw()
            next(pieces)
        live.until(lambda: live.outcomes() == ["aborted"])
        end(process)
    (row,) = rows_of(tmp_path / "proxy.jsonl")[1]
    assert row.cancel_s
    assert row.orig
    assert row.orig.status == "aborted"


def test_the_end_lets_running_streams_end_and_writes_them(live: Live, tmp_path: Path) -> None:
    with recording(live.url, tmp_path / "proxy.jsonl") as (process, http):
        body = {"prompt": "a", "max_tokens": 100, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            assert list(lines)[-2] == "data: [DONE]"
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    (row,) = rows_of(tmp_path / "proxy.jsonl")[1]
    assert row.output_tokens == 100


def test_answers_come_through_byte_for_byte(live: Live, tmp_path: Path) -> None:
    with recording(live.url, tmp_path / "proxy.jsonl") as (process, http):
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/nope?x=1"),
            ("HEAD", "/health"),
            ("GET", "/metrics"),
        ):
            direct, passed = live.http.request(method, path), http.request(method, path)
            assert passed.status_code == direct.status_code
            assert path == "/metrics" or passed.content == direct.content
            assert passed.headers.keys() == direct.headers.keys()
        passed = http.post("/v1/chat/completions", content=b"{")
        assert passed.json() == live.http.post("/v1/chat/completions", content=b"{").json()
        end(process)
    assert (tmp_path / "proxy.jsonl").read_text() == ""
