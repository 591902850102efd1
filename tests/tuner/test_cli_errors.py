from __future__ import annotations

import http.server
import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.core.trace import TraceHeader, TraceRow, format_header, format_row
from tests.tuner.engines import QUICK_PROFILE, run_tuner, sim_engine
from tuner.paths import locate_database
from tuner.store.database import open_database


class _Foreign(http.server.BaseHTTPRequestHandler):
    """Somebody's web server: answers every path alike."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def foreign_url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fails(home: Path, status: int, *arguments: str) -> str:
    """The one line on standard error."""
    code, out, err = run_tuner(home, *arguments)
    assert code == status, err
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("slo", ["fast", "0", "0s", "-1s", "5", "nan s", "infs"])
def test_an_slo_that_is_no_duration(tmp_path: Path, slo: str) -> None:
    assert "duration" in fails(tmp_path, 2, "optimize", f"--slo-pause={slo}")


def test_no_slo(tmp_path: Path) -> None:
    assert "--slo-pause" in fails(tmp_path, 2, "optimize")


@pytest.mark.parametrize("trials", ["0", "-3", "many"])
def test_a_number_of_trials_that_is_none(tmp_path: Path, trials: str) -> None:
    assert "--trials" in fails(tmp_path, 2, "optimize", "--slo-pause", "0.5s", f"--trials={trials}")


def test_a_value_that_looks_like_an_option_says_how_it_is_written(tmp_path: Path) -> None:
    line = fails(tmp_path, 2, "sweep", "--chunks", "-5,whole")
    assert "--chunks: expected one argument, and one that begins with - is written after a =" in line


def test_a_pause_that_no_setting_can_aim_at(tmp_path: Path) -> None:
    line = fails(tmp_path, 2, "optimize", "--slo-pause", "61s")
    assert "--slo-pause: '61s' is more than 30 s" in line


def test_more_load_processes_than_a_machine_bears(tmp_path: Path) -> None:
    line = fails(tmp_path, 2, "optimize", "--slo-pause", "0.5s", "--workers", "100000")
    assert "--workers: 100000 load processes are too many for this machine; at most" in line


@pytest.mark.parametrize("seed", ["-1", "x", "1.5", "9" * 30])
def test_a_seed_that_no_database_holds(tmp_path: Path, seed: str) -> None:
    line = fails(tmp_path, 2, "optimize", "--slo-pause", "0.5s", f"--seed={seed}")
    assert "is not a whole number from 0 to 1,000,000,000" in line


@pytest.mark.parametrize("name", ["a\nb", "../a", "x" * 101])
def test_a_study_whose_name_is_none(tmp_path: Path, name: str) -> None:
    assert "is no name" in fails(tmp_path, 2, "optimize", "--slo-pause", "0.5s", f"--study={name}")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["optimize", "--slo-pause", "0.5s", "--replay", ""], "the value of --replay is empty"),
        (["optimize", "--slo-pause", "0.5s", "--engine= "], "the value of --engine is empty"),
        (["show", ""], "an argument is empty"),
    ],
)
def test_an_empty_value_is_not_taken_for_none(tmp_path: Path, words: list[str], complaint: str) -> None:
    assert complaint in fails(tmp_path, 2, *words)


def test_apply_without_a_server(tmp_path: Path) -> None:
    assert "--engine" in fails(tmp_path, 2, "optimize", "--slo-pause", "0.5s", "--apply")


def test_an_unknown_command(tmp_path: Path) -> None:
    assert "invalid choice" in fails(tmp_path, 2, "optimise")


def test_a_profile_whose_answers_are_one_token_long_is_refused_before_an_engine_starts(
    tmp_path: Path,
) -> None:
    profile = tmp_path / "brief.yaml"
    profile.write_text(re.sub(r"max_tokens: \d+", "max_tokens: 1", QUICK_PROFILE.read_text()))
    line = fails(
        tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--profile", str(profile), "--backend", "sim"
    )
    assert "no answer of quick is longer than one token" in line


def test_a_trace_whose_answers_are_one_token_long_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    trace = tmp_path / "brief.jsonl"
    row = TraceRow(id="a", t=0.0, prompt_tokens=4000, output_tokens=1)
    trace.write_text(f"{format_header(TraceHeader())}\n{format_row(row)}\n")
    line = fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--replay", str(trace), "--backend", "sim")
    assert "no answer of brief.jsonl is longer than one token" in line


def test_an_unknown_profile(tmp_path: Path) -> None:
    line = fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--profile", "nope")
    assert "ambush" in line


def test_a_missing_trace(tmp_path: Path) -> None:
    trace = str(tmp_path / "none.jsonl")
    assert trace in fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--replay", trace)


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    trace = tmp_path / "letter.txt"
    trace.write_text("Dear all,\n")
    assert "trace" in fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--replay", str(trace))


def test_nobody_at_the_engines_address(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    assert url in fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--engine", url)


@pytest.mark.parametrize("url", ["localhost", "http://127.0.0.1:99999", "http://[::1"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    assert "address" in fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--engine", url)


def test_somebody_elses_server(tmp_path: Path, foreign_url: str) -> None:
    line = fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--engine", foreign_url)
    assert "not an Evenflow engine" in line


def test_a_key_file_that_is_missing(tmp_path: Path) -> None:
    arguments = ["optimize", "--slo-pause", "0.5s", "--api-key-file", str(tmp_path / "key")]
    assert "key" in fails(tmp_path, 1, *arguments)


def test_a_database_that_is_another_programs(tmp_path: Path) -> None:
    file = tmp_path / "photos.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table photos (id)")
    assert "photos" in fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--db", str(file))


def test_a_database_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("milk, eggs, and a long enough line to be a file\n")
    assert "not a SQLite" in fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--db", str(file))
    assert file.read_text().startswith("milk")


@pytest.mark.parametrize("folder", [".", "/", ""])
def test_a_database_that_is_a_folder(tmp_path: Path, folder: str) -> None:
    db = folder or str(tmp_path)
    assert "give a file in it" in fails(tmp_path, 2, "show", "--db", db)


def test_two_kinds_of_traffic_at_once(tmp_path: Path) -> None:
    arguments = ["optimize", "--slo-pause", "0.5s", "--profile", "chat", "--replay", "monday.jsonl"]
    assert "not allowed with" in fails(tmp_path, 2, *arguments)


def test_a_locked_database(tmp_path: Path) -> None:
    file = tmp_path / "evenflow.db"
    connection = sqlite3.connect(file)
    connection.execute("BEGIN EXCLUSIVE")
    assert "locked" in fails(tmp_path, 1, "optimize", "--slo-pause", "0.5s", "--db", str(file))
    connection.close()


@pytest.mark.parametrize("command", ["show", "report"])
def test_a_damaged_database(tmp_path: Path, command: str) -> None:
    file = tmp_path / "evenflow.db"
    open_database(locate_database(str(file)), create=True).dispose()
    whole = file.read_bytes()
    file.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
    assert "is damaged" in fails(tmp_path, 1, command, "--db", str(file))


def test_nothing_to_show(tmp_path: Path) -> None:
    assert "no database" in fails(tmp_path, 1, "show")


def test_nothing_to_apply(tmp_path: Path) -> None:
    assert "no database" in fails(tmp_path, 1, "apply", "--to", "http://127.0.0.1:9")


def test_a_chunk_size_that_is_none(tmp_path: Path) -> None:
    assert "'tiny'" in fails(tmp_path, 2, "sweep", "--chunks", "whole,tiny")


def test_more_streams_than_the_server_runs_at_once(tmp_path: Path) -> None:
    with sim_engine(tmp_path) as url:
        line = fails(tmp_path, 2, "sweep", "--engine", url, "--streams", "16")
    assert "runs 16 at once" in line


def test_a_rollback_at_nobody(tmp_path: Path) -> None:
    assert "127.0.0.1:9" in fails(tmp_path, 1, "rollback", "--to", "http://127.0.0.1:9")
