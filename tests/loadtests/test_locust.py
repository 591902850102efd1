"""Locust as people start it, in processes of its own: users, profiles, its page, several load processes."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.records import Outcome
from loadtests.run import Progress, run_load
from loadtests.selftest.scripted_server import COMMENT, Script, ScriptedServer, Write, text
from tests.loadtests.test_run import FOREVER, FROZEN, answer, schedule
from tests.patience import DEADLINE_S, until
from tests.ports import free_port

LOCUSTFILE = Path(__file__).parents[2] / "loadtests" / "locustfile.py"
# Two tokens; when the comment is sent, they have been read for long.
SLOW = Script((*[Write(0.0, text(), 1)] * 2, Write(1.0, COMMENT), Write(FOREVER, text(), 1)))


def locust(directory: Path, url: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", url, "--loglevel", "ERROR"]
    return subprocess.Popen(
        [*command, *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(LOCUSTFILE.parents[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sharing(num_processes: int) -> list[str]:
    port = str(free_port())
    return ["--processes", str(num_processes), "--master-bind-port", port, "--master-port", port]


def chat_lengths(tokens: int) -> list[str]:
    return ["--chat-max-tokens", str(tokens), "--long-max-tokens", str(tokens), "--long-prompt-tokens", "90"]


def test_users_of_several_processes_hand_in_one_result_and_never_ask_alike(tmp_path: Path) -> None:
    result = tmp_path / "seen.json"
    users = ["--headless", "--users", "8", "--spawn-rate", "8", "--seed", "7"]
    with ScriptedServer({4: answer(4)}) as server:
        process = locust(tmp_path, server.url, *users, *chat_lengths(4), *sharing(2), "--result", str(result))
        until(lambda: server.num_requests >= 16)  # who has been answered thinks for a second at least
        process.terminate()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    records = json.loads(result.read_text())["records"]
    assert len(records) == server.num_requests >= 8
    assert {record["outcome"] for record in records} <= {"completed", "unfinished"}
    assert {record["id"].split("-")[1] for record in records} == {"0", "1"}
    assert len(set(server.asked)) == len(server.asked)
    assert "TTFT" in out + err
    assert "worst pause" in out + err


def test_a_process_that_is_killed_is_said_and_fails_the_run(tmp_path: Path) -> None:
    users = ["--headless", "--users", "4", "--spawn-rate", "4"]
    with ScriptedServer({4: SLOW}) as server:
        process = locust(tmp_path, server.url, *users, *chat_lengths(4), *sharing(2))
        until(lambda: server.num_requests == 4)
        os.kill(_children(process.pid)[0], signal.SIGKILL)
        process.terminate()
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "1 of the load processes died" in err


def test_who_is_reading_when_the_test_stops_is_not_forgotten(tmp_path: Path) -> None:
    result = tmp_path / "seen.json"
    users = ["--headless", "--users", "4", "--spawn-rate", "4"]
    with ScriptedServer({4: SLOW}) as server:
        process = locust(tmp_path, server.url, *users, *chat_lengths(4), "--result", str(result))
        until(lambda: server.num_requests == 4 and len(server.sent[4]) == len(SLOW.writes) + 1)
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
    records = json.loads(result.read_text())["records"]
    assert Counter(record["outcome"] for record in records) == {"unfinished": 4}
    assert all(len(record["events"]) == 2 for record in records)


def test_a_server_that_is_not_there_is_a_failed_row_not_a_traceback(tmp_path: Path) -> None:
    users = ["--headless", "--users", "1", "--run-time", "2s"]
    out, err = locust(tmp_path, "http://127.0.0.1:9", *users).communicate(timeout=DEADLINE_S)
    assert "no answer from http://127.0.0.1:9" in out + err
    assert "Traceback" not in out + err


@pytest.mark.parametrize("option", ["--result", "--api-key-file"])
def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, option: str) -> None:
    missing = str(tmp_path / "nowhere" / "file")
    users = ["--headless", "--users", "1", "--run-time", "2s"]
    with ScriptedServer({4: answer(4)}) as server:
        process = locust(tmp_path, server.url, *users, *chat_lengths(4), option, missing)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert f"{missing} cannot be" in out + err
    assert "Traceback" not in out + err


def test_an_slo_that_is_no_duration_is_one_line(tmp_path: Path) -> None:
    process = locust(tmp_path, "http://127.0.0.1:9", "--headless", "--slo-pause", "soon")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "'soon' is not a duration" in err


@pytest.mark.skipif(sys.platform != "linux", reason="real time is Linux's")
def test_real_time_is_taken_when_the_environment_asks_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENFLOW_REAL_TIME", "1")
    process = locust(tmp_path, "http://127.0.0.1:9", "--headless", "--users", "1", "--run-time", "60s")
    has_it = until(lambda: process.poll() or os.sched_getscheduler(process.pid) == os.SCHED_RR) is True
    process.terminate()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert has_it or "real time is not allowed here" in err
    assert "Traceback" not in err


def test_a_profile_is_played_without_users_and_sized_for_the_server(tmp_path: Path) -> None:
    profile, result = tmp_path / "two.yaml", tmp_path / "seen.json"
    profile.write_text(
        """
        description: two short questions
        time_unit: s
        warm_up: 0
        duration: 1
        grace_s: 5
        groups:
          short:
            prompt_tokens: 20
            max_tokens: 3
            arrivals: {process: at, times: [0.0, 0.5]}
        """
    )
    sizing = {1: answer(1), 16: answer(16)}
    with ScriptedServer({**sizing, 3: answer(3)}) as server:
        process = locust(
            tmp_path, server.url, "--headless", "--profile", str(profile), "--result", str(result)
        )
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    records = json.loads(result.read_text())["records"]
    assert [(record["id"], record["output_tokens"]) for record in records] == [("short-0", 3), ("short-1", 3)]


def test_a_profile_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with ScriptedServer({}) as server:
        process = locust(tmp_path, server.url, "--headless", "--profile", "nope")
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "no profile 'nope'" in err
    assert "Traceback" not in err


# -- the page --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def page(directory: Path, url: str, *options: str) -> Iterator[httpx.Client]:
    port = str(free_port())
    process = locust(directory, url, "--web-host", "127.0.0.1", "--web-port", port, *options)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client:
            until(lambda: _answers(client))
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def _answers(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/").status_code == 200
    return False


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "shared"])
def test_the_page_shows_streams_in_a_table_and_in_charts(tmp_path: Path, options: list[str]) -> None:
    shared = sharing(2) if options else []
    with (
        ScriptedServer({4: answer(4)}) as server,
        page(tmp_path, server.url, *chat_lengths(4), *shared) as client,
    ):
        index = client.get("/").text
        assert '"title": "Streams"' in index
        assert "streams.js" in index
        assert "Longest streaming pause" in client.get("/streams.js").text
        if shared:
            until(lambda: client.get("/stats/requests").json().get("worker_count") == 2)
        client.post("/swarm", data={"user_count": 8, "spawn_rate": 8, "host": server.url})
        stats = until(lambda: _both_kinds(client.get("/stats/requests").json()))
        charts = client.get("/streams.json").json()
        client.post("/stop")
        lines = client.get("/streams.csv").text.splitlines()
    by_row = {(row["method"], row["name"]): row["num_requests"] for row in stats["stats"]}
    assert {("TTFT", "chat"), ("TTFT", "long"), ("worst pause", "chat"), ("worst pause", "long")} <= set(
        by_row
    )
    # A request counts once in the sums.
    assert by_row["", "Aggregated"] == by_row["TTFT", "chat"] + by_row["TTFT", "long"]
    assert charts["slo_pause_s"] == 0.5
    assert set(charts["pause"]) == set(charts["ttft"]) == {"chat", "long"}
    assert len(lines) == 3


def _both_kinds(stats: dict[str, Any]) -> dict[str, Any] | None:
    (table,) = stats["extended_stats"]
    shown = {row["name"] for row in table["data"]}
    rows = {row["name"] for row in stats["stats"] if row["method"] == "worst pause"}
    return stats if shown == rows == {"chat", "long"} else None


# -- a job shared by several processes ---------------------------------------------------------------------


def test_a_shared_schedule_is_played_once_and_comes_back_as_from_one_process() -> None:
    plan = schedule([3, 5, 3, 5, 3])
    results = []
    for num_processes in (1, 3):
        with ScriptedServer({3: answer(3), 5: answer(5)}) as server:
            results.append(run_load(plan, server.url, num_processes=num_processes, salt="same"))
            assert server.num_requests == 5
            assert len(set(server.asked)) == 5
    alone, shared = results
    assert [record.id for record in shared.records] == [record.id for record in alone.records]
    assert [r.output_tokens for r in shared.records] == [r.output_tokens for r in alone.records]
    assert {record.outcome for record in shared.records} == {Outcome.COMPLETED}


def test_a_pause_seen_by_one_process_stops_all_of_them() -> None:
    with ScriptedServer({2: FROZEN, 3: FROZEN}) as server:
        result = run_load(
            schedule([2, 3], every_s=0.2), server.url, abort_pause_s=0.3, num_processes=2, grace_s=2 * FOREVER
        )
    assert result.aborted
    outcomes = {record.outcome for record in result.records}
    # The one that saw no pause may not have come to send its request; nobody reads to the end.
    assert {Outcome.UNFINISHED} <= outcomes <= {Outcome.UNFINISHED, Outcome.NEVER_SENT}


def test_the_requests_of_a_process_that_dies_are_accounted_for(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_one(progress: Progress) -> None:
        if progress.num_sent == 4 and not killed:
            killed.append(_workers(tmp_path)[0])
            os.kill(killed[0], signal.SIGKILL)
            server.release()

    with HeldServer({3: answer(3)}) as server:
        result = run_load(
            schedule([3] * 4), server.url, workdir=tmp_path, num_processes=2, on_progress=kill_one
        )
    outcomes = Counter(record.outcome for record in result.records)
    assert outcomes == {Outcome.COMPLETED: 2, Outcome.FAILED: 2}
    assert not result.validity.ok
    assert any("1 of the load processes died" in reason for reason in result.validity.reasons)


def _children(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-ax", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in listing.stdout.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]


class HeldServer(ScriptedServer):
    """Answers nothing until it is released."""

    def __init__(self, scripts: Mapping[int, Script]) -> None:
        super().__init__(scripts)
        self._held: list[Callable[[], None]] = []
        self._is_released = False

    def answer(self, transport: asyncio.Transport, path: str, body: bytes) -> None:
        play = partial(super().answer, transport, path, body)
        if path.endswith("/completions") and not self._is_released:
            self._held.append(play)
        else:
            play()

    def release(self) -> None:
        def play() -> None:
            self._is_released = True
            for held in self._held:
                held()

        self._loop.call_soon_threadsafe(play)


def _workers(workdir: Path) -> list[int]:
    """Load processes that were forked by another one of the same job."""
    listing = subprocess.run(
        ["ps", "-axww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    ours = [line.split()[:2] for line in listing.splitlines() if f"--job {workdir / 'job.json'}" in line]
    pids = {pid for pid, _ in ours}
    return [int(pid) for pid, parent in ours if parent in pids]
