"""`tuner` as a process against real engines over the simulated device."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.patience import DEADLINE_S, until
from tests.tuner.engines import (
    QUICK_PROFILE,
    admin,
    config_of,
    end_of,
    history,
    is_whole,
    quick_optimize,
    read_json,
    read_until,
    run_tuner,
    sim_engine,
    sim_engine_process,
    start_tuner,
)

ROW = {"config", "long_ttft_p95_s", "worst_pause_s", "shed_rate"}


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=DEADLINE_S).status_code == 200
    except httpx.HTTPError:
        return False


def check_result(result: dict[str, Any]) -> None:
    assert result["confirmed"] is True
    assert set(result["winner"]) >= ROW | {"replicates"}
    assert set(result["baseline"]) >= ROW
    assert set(result["rule_of_thumb"]) >= ROW
    assert result["winner"]["replicates"] >= 3
    assert result["winner"]["worst_pause_s"] <= result["slo_pause_s"] < result["baseline"]["worst_pause_s"]


# -- a study that nothing happens to ---------------------------------------------------------------------


class Finished(NamedTuple):
    home: Path
    result: dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A study "first" and what it printed; only to be read."""
    home = tmp_path_factory.mktemp("finished")
    code, out, err = run_tuner(home, *quick_optimize("--json", "--study", "first"))
    assert code == 0, err
    return Finished(home, read_json(out))


def test_a_study_from_beginning_to_end(finished: Finished) -> None:
    check_result(finished.result)
    assert finished.result["study"] == "first"
    assert finished.result["live_trials"] >= 5
    assert finished.result["simulated_trials"] > 0
    assert finished.result["simulator_error"]["worst_pause"] is not None


def test_a_finished_study_is_shown(finished: Finished) -> None:
    code, out, _ = run_tuner(finished.home, "show", "first", "--json")
    shown = read_json(out)
    assert code == 0
    assert shown["result"]["winner"] == finished.result["winner"]
    assert {trial["kind"] for trial in shown["trials"]} >= {"baseline", "rule", "confirm"}


def test_a_finished_study_is_told_as_one_file(finished: Finished, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert run_tuner(finished.home, "report", "first", "--html", str(report))[0] == 0
    assert "2,400 tokens of long 1 were read" in report.read_text()


def test_a_study_is_about_one_slo_and_one_seed(finished: Finished) -> None:
    line = run_tuner(finished.home, *quick_optimize("--study", "first", "--slo-pause", "0.5s"))[2]
    assert "0.25 s, not 0.5 s" in line
    line = run_tuner(finished.home, *quick_optimize("--study", "first", "--seed", "2"))[2]
    assert "the seed 1, not 2" in line


def test_a_winner_is_put_on_a_server_and_taken_off_again(finished: Finished, tmp_path: Path) -> None:
    with sim_engine(tmp_path / "engine") as url:
        apply = ("apply", "first", "--to", url, "--watch", "1s", "--json")
        code, out, err = run_tuner(finished.home, *apply)
        assert code == 0, err
        assert read_json(out)["verdict"] == "no data"
        winner = finished.result["winner"]["config"]
        assert config_of(url) == winner
        assert run_tuner(finished.home, "rollback", "--to", url)[0] == 0
        assert config_of(url) != winner


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_watch_that_does_not_come_to_its_end_leaves_no_unjudged_config(
    finished: Finished, tmp_path: Path, ending: signal.Signals
) -> None:
    with sim_engine(tmp_path / "engine") as url:
        before = config_of(url)
        with start_tuner(finished.home, "apply", "first", "--to", url, "--watch", "10m") as process:
            until(lambda: history(url)[-1]["leased"])
            last = history(url)[-1]
            process.send_signal(ending)
            end_of(process)
        assert last["config"] == finished.result["winner"]["config"] != before
        if ending is signal.SIGKILL:
            soon = {"generation": last["generation"], "lease_s": 0.01}
            httpx.post(f"{url}/admin/config/lease", json=soon, timeout=DEADLINE_S).raise_for_status()
        until(lambda: config_of(url) == before)


# -- studies that are cut short --------------------------------------------------------------------------


class Begun(NamedTuple):
    url: str
    home: Path


BEGUN = quick_optimize("--study", "begun", "--engine")


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """A server, and a study of it that was interrupted when it had its baseline."""
    directory = tmp_path_factory.mktemp("begun")
    with sim_engine(directory / "engine") as url:
        with start_tuner(directory / "home", *BEGUN, url) as process:
            read_until(process, "chunking off")
            process.send_signal(signal.SIGINT)
            end_of(process)
        yield Begun(url, directory / "home")


@pytest.fixture
def begun(first_run: Begun, tmp_path: Path) -> Begun:
    """A copy to go on with: its first live run is that of the rule of thumb."""
    return Begun(first_run.url, Path(shutil.copytree(first_run.home, tmp_path / "home")))


def moved(begun: Begun, url: str) -> Begun:
    """As if the study had been begun on another server like the first."""
    with contextlib.closing(sqlite3.connect(begun.home / "evenflow.db")) as connection, connection:
        connection.execute("update studies set engine = ?", (url,))
    return Begun(url, begun.home)


@contextlib.contextmanager
def during_a_run(begun: Begun) -> Iterator[subprocess.Popen[str]]:
    """A tuner that goes on with the study and has put a trial's config on the server."""
    num_before = len(history(begun.url))
    with start_tuner(begun.home, *BEGUN, begun.url) as process:
        read_until(process, "chunking off")
        until(lambda: len(history(begun.url)) > num_before and history(begun.url)[-1]["leased"])
        yield process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_study_puts_the_servers_config_back(begun: Begun, number: signal.Signals) -> None:
    before = config_of(begun.url)
    with during_a_run(begun) as process:
        process.send_signal(number)
        out, err = end_of(process)
    assert process.returncode == 128 + number
    assert "--study begun" in err
    assert "so far" in err
    assert "Traceback" not in err
    assert out == ""
    assert config_of(begun.url) == before
    until(lambda: admin(begun.url, "stats")["running"] == 0)
    assert is_whole(begun.home / "evenflow.db")
    study = read_json(run_tuner(begun.home, "show", "begun", "--json")[1])
    assert study["status"] == "interrupted"


def test_a_server_goes_back_to_its_config_by_itself_when_the_tuner_is_killed(begun: Begun) -> None:
    before = config_of(begun.url)
    with during_a_run(begun) as process:
        process.kill()
    assert config_of(begun.url) != before
    soon = {"generation": history(begun.url)[-1]["generation"], "lease_s": 0.01}
    assert httpx.post(f"{begun.url}/admin/config/lease", json=soon, timeout=DEADLINE_S).status_code == 200
    until(lambda: config_of(begun.url) == before)


def test_a_study_whose_server_dies_says_how_to_go_on(begun: Begun, tmp_path: Path) -> None:
    with (
        sim_engine_process(tmp_path / "engine") as (server, url),
        during_a_run(moved(begun, url)) as process,
    ):
        server.kill()
        _, err = end_of(process)
    assert process.returncode == 1
    assert "could not be restored" in err
    check_last_words(err, url)


def test_a_study_whose_server_is_shut_down_says_how_to_go_on(begun: Begun, tmp_path: Path) -> None:
    """Whether its config still goes back is decided by which of the two is faster."""
    with contextlib.ExitStack() as server:
        url = server.enter_context(sim_engine(tmp_path / "engine"))
        with during_a_run(moved(begun, url)) as process:
            server.close()
            _, err = end_of(process)
    assert process.returncode == 1
    check_last_words(err, url)


def check_last_words(err: str, url: str) -> None:
    last = err.strip().splitlines()[-1]
    assert url in last
    assert last.endswith("go on with the same command and --study begun")


def test_a_killed_study_goes_on(tmp_path: Path) -> None:
    arguments = quick_optimize("--json", "--study", "killed")
    with start_tuner(tmp_path, *arguments) as process:
        url = read_until(process, "engine started").split()[-1]
        read_until(process, "chunking off")
        process.kill()
    until(lambda: not answers(url))  # its engine does not outlive it
    assert is_whole(tmp_path / "evenflow.db")
    code, out, err = run_tuner(tmp_path, *arguments)
    assert code == 0, err
    check_result(read_json(out))
    trials = read_json(run_tuner(tmp_path, "show", "killed", "--json")[1])["trials"]
    # A run that a busy machine spoiled is kept beside the one that counts.
    assert [(t["kind"], t["status"]) for t in trials].count(("baseline", "done")) == 1
    assert "running" not in {trial["status"] for trial in trials}


# -- other commands --------------------------------------------------------------------------------------


def test_a_sweep_shows_what_a_chunk_size_costs(tmp_path: Path) -> None:
    arguments = [
        "sweep",
        "--backend",
        "sim",
        "--chunks",
        "whole,4000,500",
        "--prompt-tokens",
        "2000",
        "--json",
    ]
    code, out, err = run_tuner(tmp_path, *arguments)
    assert code == 0, err
    whole, chunked = read_json(out)["rows"]
    assert (whole["chunk_tokens"], chunked["chunk_tokens"]) == (None, 500)
    assert "4000 tokens skipped" in err
    assert chunked["worst_pause_s"] < whole["worst_pause_s"] / 2
    assert chunked["prefill_overhead"] > whole["prefill_overhead"]
    assert 0.0 < chunked["chunking_efficiency"] <= 1.1


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "monday.jsonl"
    rows = [{"id": f"r{i}", "t": 0.2 * i, "in": 40 + 400 * (i == 2), "out": 8} for i in range(5)]
    lines = [json.dumps(row) for row in ({"v": 1, "kind": "header"}, *rows)]
    trace.write_text("\n".join(lines) + "\n")
    with sim_engine(tmp_path / "engine") as url:
        code, out, err = run_tuner(tmp_path, "replay", str(trace), "--to", url, "--json")
    assert code == 0, err
    answer = read_json(out)
    assert answer["counts"]["completed"] == 5
    assert answer["long_ttft_n"] == 1


def test_runs_longer_than_the_budget_are_refused_before_the_first(begun: Begun, tmp_path: Path) -> None:
    profile = tmp_path / "long.yaml"
    quick = QUICK_PROFILE.read_text(encoding="utf-8")
    profile.write_text(re.sub(r"(?m)^duration:.*", "duration: 90000", quick), encoding="utf-8")
    arguments = quick_optimize("--engine", begun.url, "--profile", str(profile), "--budget", "20s")
    code, out, err = run_tuner(begun.home, *arguments)
    assert (code, out) == (1, "")
    assert "more than the budget of 20 s" in err.strip().splitlines()[-1]
    assert "give --budget" in err


def test_an_slo_below_a_decode_step_is_out_of_reach(tmp_path: Path) -> None:
    arguments = quick_optimize("--json", "--slo-pause", "10ms")
    code, out, err = run_tuner(tmp_path, *arguments)
    assert code == 3, err
    result = read_json(out)
    assert result["confirmed"] is False
    assert result["winner"] is None
    assert result["smallest_pause"]["worst_pause_s"] > 0.01
    assert err.splitlines()[-1].startswith("tuner: no config keeps")


def test_that_no_config_keeps_the_slo_is_said_once(tmp_path: Path) -> None:
    code, out, err = run_tuner(tmp_path, *quick_optimize("--slo-pause", "10ms"))
    assert code == 3, err
    assert (out + err).lower().count("no config keeps") == 1
    assert out.startswith("No config keeps a pause of 0.01 s")


def test_a_second_tuner_waits_for_the_first(tmp_path: Path) -> None:
    with start_tuner(tmp_path, *quick_optimize()) as process:
        read_until(process, "engine started")
        code, _, err = run_tuner(tmp_path, *quick_optimize())
        process.kill()
    assert code == 1
    assert "another tuner" in err
