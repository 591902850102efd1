"""`tuner` as a process against real engines over the simulated device."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tuner.engines import (
    QUICK_PROFILE,
    quick_optimize,
    read_json,
    run_tuner,
    sim_engine,
    sim_engine_process,
    start_tuner,
)

ROW = {"config", "long_ttft_p95_s", "worst_pause_s", "shed_rate"}


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """The first line of standard error that holds `words`."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        if words in line:
            return line
        seen.append(line)
    raise AssertionError(f"{words!r} was never said: {seen}")


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within half a minute."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.1) for _ in range(300))


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


def is_whole(file: Path) -> bool:
    with sqlite3.connect(file) as connection:
        return bool(connection.execute("pragma integrity_check").fetchone() == ("ok",))


def check_result(result: dict[str, Any]) -> None:
    assert result["confirmed"] is True
    assert set(result["winner"]) >= ROW | {"replicates"}
    assert set(result["baseline"]) >= ROW
    assert set(result["rule_of_thumb"]) >= ROW
    assert result["winner"]["replicates"] >= 3
    assert result["winner"]["worst_pause_s"] <= result["slo_pause_s"] < result["baseline"]["worst_pause_s"]


def test_a_study_from_beginning_to_end(tmp_path: Path) -> None:
    code, out, err = run_tuner(tmp_path, *quick_optimize("--json", "--study", "first"))
    assert code == 0, err
    result = read_json(out)
    check_result(result)
    assert result["study"] == "first"
    assert result["live_trials"] >= 5
    assert result["simulated_trials"] > 0
    assert result["simulator_error"]["worst_pause"] is not None

    code, out, _ = run_tuner(tmp_path, "show", "first", "--json")
    shown = read_json(out)
    assert code == 0
    assert shown["result"]["winner"] == result["winner"]
    assert {trial["kind"] for trial in shown["trials"]} >= {"baseline", "rule", "confirm"}

    report = tmp_path / "report.html"
    assert run_tuner(tmp_path, "report", "first", "--html", str(report))[0] == 0
    assert "2,400 tokens of long 1 were read" in report.read_text()

    line = run_tuner(tmp_path, *quick_optimize("--study", "first", "--slo-pause", "0.4s"))[2]
    assert "0.3 s, not 0.4 s" in line

    with sim_engine(tmp_path / "engine") as url:
        code, out, err = run_tuner(tmp_path, "apply", "first", "--to", url, "--watch", "1s", "--json")
        assert code == 0, err
        applied = read_json(out)
        assert applied["verdict"] == "no data"
        in_force = httpx.get(f"{url}/admin/config").json()
        assert in_force["config"] == result["winner"]["config"]
        assert run_tuner(tmp_path, "rollback", "--to", url)[0] == 0
        assert httpx.get(f"{url}/admin/config").json()["config"] != result["winner"]["config"]


def test_a_killed_study_goes_on(tmp_path: Path) -> None:
    arguments = quick_optimize("--json", "--study", "killed")
    with start_tuner(tmp_path, *arguments) as process:
        url = read_until(process, "engine started").split()[-1]
        read_until(process, "chunking off")
        process.kill()
    assert eventually(lambda: not answers(url)), "its engine outlived it"
    assert is_whole(tmp_path / "evenflow.db")
    code, out, err = run_tuner(tmp_path, *arguments)
    assert code == 0, err
    check_result(read_json(out))
    trials = read_json(run_tuner(tmp_path, "show", "killed", "--json")[1])["trials"]
    # A run that a busy machine spoiled is kept beside the one that counts.
    assert [(t["kind"], t["status"]) for t in trials].count(("baseline", "done")) == 1
    assert "running" not in {trial["status"] for trial in trials}


def test_a_server_goes_back_to_its_config_by_itself_when_the_tuner_is_killed(tmp_path: Path) -> None:
    with sim_engine(tmp_path / "engine") as url:
        before = httpx.get(f"{url}/admin/config").json()["config"]
        with start_tuner(tmp_path, *quick_optimize("--engine", url, "--study", "gone")) as process:
            read_until(process, "chunking off")
            assert eventually(lambda: history(url)[-1]["leased"])
            process.kill()
        last = history(url)[-1]
        assert last["config"] != before
        soon = {"generation": last["generation"], "lease_s": 0.01}
        assert httpx.post(f"{url}/admin/config/lease", json=soon).status_code == 200
        assert eventually(lambda: httpx.get(f"{url}/admin/config").json()["config"] == before)


def test_a_study_whose_server_dies_says_how_to_go_on(tmp_path: Path) -> None:
    arguments = quick_optimize("--study", "lost", "--engine")
    with (
        sim_engine_process(tmp_path / "engine") as (server, url),
        start_tuner(tmp_path, *arguments, url) as process,
    ):
        read_until(process, "chunking off")
        server.kill()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "could not be restored" in err
    check_last_words(err, url)


def test_a_study_whose_server_is_shut_down_says_how_to_go_on(tmp_path: Path) -> None:
    """Whether its config still goes back is decided by which of the two is faster."""
    with contextlib.ExitStack() as server:
        url = server.enter_context(sim_engine(tmp_path / "engine"))
        with start_tuner(tmp_path, *quick_optimize("--engine", url, "--study", "lost")) as process:
            read_until(process, "chunking off")
            server.close()
            _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    check_last_words(err, url)


def check_last_words(err: str, url: str) -> None:
    last = err.strip().splitlines()[-1]
    assert url in last
    assert last.endswith("go on with the same command and --study lost")


def history(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{url}/admin/config/history").json()["history"]
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_study_puts_the_servers_config_back(tmp_path: Path, number: signal.Signals) -> None:
    with sim_engine(tmp_path / "engine") as url:
        before = httpx.get(f"{url}/admin/config").json()["config"]
        with start_tuner(tmp_path, *quick_optimize("--engine", url, "--study", "stopped")) as process:
            read_until(process, "chunking off")
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert "--study stopped" in err
        assert "so far" in err
        assert "Traceback" not in err
        assert out == ""
        assert httpx.get(f"{url}/admin/config").json()["config"] == before
        assert eventually(lambda: httpx.get(f"{url}/admin/stats").json()["running"] == 0)
    assert is_whole(tmp_path / "evenflow.db")
    study = read_json(run_tuner(tmp_path, "show", "stopped", "--json")[1])
    assert study["status"] == "interrupted"


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


def test_runs_longer_than_the_budget_are_refused_before_the_first(tmp_path: Path) -> None:
    profile = tmp_path / "long.yaml"
    quick = QUICK_PROFILE.read_text(encoding="utf-8")
    profile.write_text(re.sub(r"(?m)^duration:.*", "duration: 90000", quick), encoding="utf-8")
    code, out, err = run_tuner(tmp_path, *quick_optimize("--profile", str(profile), "--budget", "20s"))
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
