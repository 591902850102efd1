"""The command as a user or the tuner runs it: a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from engine import cli
from engine.sim_backend import SIM_MODEL
from loadtests.traces.files import open_trace
from tests.patience import DEADLINE_S, until

ENGINE = [sys.executable, "-c", "from engine.cli import main; main()"]


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [
        *ENGINE,
        "serve",
        "--backend",
        "sim",
        "--port",
        "0",
        "--announce",
        "--grace-s",
        str(DEADLINE_S),
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def announcement(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout
    answer: dict[str, object] = json.loads(process.stdout.readline())
    return answer


def stream(url: str, body: dict[str, object]) -> AbstractContextManager[httpx.Response]:
    return httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=DEADLINE_S)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with start() as process:
        yield process
        process.kill()


def test_it_announces_itself_and_ends_cleanly_on_a_signal(process: subprocess.Popen[str]) -> None:
    said = announcement(process)
    assert said["pid"] == process.pid
    assert httpx.get(f"{said['url']}/ready", timeout=DEADLINE_S).status_code == 200
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert errors.splitlines() == [
        line for line in errors.splitlines() if line.startswith("engine ready on ")
    ]


def test_a_signal_lets_running_streams_end(process: subprocess.Popen[str]) -> None:
    body = {"prompt": "a", "max_tokens": 60, "stream": True}
    with stream(str(announcement(process)["url"]), body) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        assert list(lines)[-2] == "data: [DONE]"
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


def test_a_second_signal_ends_it_at_once(process: subprocess.Popen[str]) -> None:
    body = {"prompt": "a", "max_tokens": 100_000, "stream": True}
    url = str(announcement(process)["url"])
    with stream(url, body) as response:
        lines = response.iter_lines()  # held, for its end would be the client's leaving
        next(lines)
        process.send_signal(signal.SIGINT)
        while httpx.get(f"{url}/ready", timeout=DEADLINE_S).status_code == 200:
            pass
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)
    assert process.returncode == 128 + signal.SIGINT


def test_it_ends_with_the_program_that_started_it(process: subprocess.Popen[str]) -> None:
    announcement(process)
    assert process.stdin
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0


def failure(*arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [*ENGINE, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    return done.returncode, done.stderr.splitlines()


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        status, lines = failure("serve", "--backend", "sim", "--port", port)
    assert status == 1
    assert len(lines) == 1
    assert port in lines[0]


def test_other_starts_that_fail_are_one_line_each(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"prefill_chunk_tokens": 0}')
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    sim = ("serve", "--backend", "sim", "--port", "0")
    for arguments in (
        (*sim, "--host", "0.0.0.0"),
        (*sim, "--config", str(config)),
        (*sim, "--config", str(tmp_path / "none.json")),
        (*sim, "--api-key-file", str(tmp_path / "none")),
        (*sim, "--record", str(config / "trace.jsonl")),
        (*sim, "--steps", str(config / "steps.jsonl")),
        ("fit-cost", str(tmp_path / "none.jsonl")),
        ("fit-cost", str(binary)),
        ("chat", "--api-key-file", str(tmp_path / "none")),
        ("chat", "--url", "http://[::1"),
    ):
        status, lines = failure(*arguments)
        assert (status, len(lines)) == (1, 1), (arguments, lines)


@pytest.mark.parametrize("arguments", [["fit-cost"], ["chat", "--api-key-file"]])
def test_a_missing_file_is_named_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]
) -> None:
    missing = str(tmp_path / "none")
    with pytest.raises(SystemExit):
        cli.main([*arguments, missing])
    error = capsys.readouterr().err
    assert error.count(missing) == 1
    assert "No such file or directory" in error
    assert "Errno" not in error


def test_a_step_file_with_another_content_names_line_and_field(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text('{"generation": 1}\n')
    with pytest.raises(SystemExit):
        cli.main(["fit-cost", str(steps)])
    assert capsys.readouterr().err == f"engine: {steps}: line 1 is not a step record: it has no 'step'\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--backend", "steam"],
        ["serve", "--port", "99999"],
        ["serve", "--port=-1"],
        ["serve", "--grace-s", "nan"],
        ["serve", "--grace-s=-1"],
        ["serve", "--record-max-bytes", "1k"],
        ["chat", "--temperature", "inf"],
        ["chat", "--max-tokens", "0"],
    ],
)
def test_wrong_usage_is_one_line_and_status_two(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert arguments[1].partition("=")[0] in lines[0]


def test_a_state_directory_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    done = subprocess.run(
        [*ENGINE, "serve", "--backend", "sim", "--port", "0", "--state-dir", str(taken / "state")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(taken) in line
    assert "give a directory" in line


def test_two_recordings_are_not_written_into_one_file(tmp_path: Path) -> None:
    both = str(tmp_path / "both.jsonl")
    done = subprocess.run(
        [*ENGINE, "serve", "--backend", "sim", "--port", "0", "--record", both, "--steps", both],
        check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 1
    problem = f"--record and --steps both name {both}; give each a file of its own"
    assert done.stderr.splitlines() == [f"engine: {problem}"]


def test_help_imports_no_server_and_no_model() -> None:
    heavy = "['fastapi', 'uvicorn', 'numpy', 'mlx', 'transformers', 'httpx']"
    code = (
        "import sys\n"
        "from engine.cli import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_traffic_and_launches_are_recorded_to_files(tmp_path: Path) -> None:
    trace, steps = tmp_path / "trace.jsonl", tmp_path / "steps.jsonl"
    config = tmp_path / "config.json"
    config.write_text('{"solo_chunk_tokens": 64}')
    process = start("--record", str(trace), "--steps", str(steps), "--config", str(config))
    url = str(announcement(process)["url"])
    for size in range(1, 11):
        body = {"prompt": f"{size} " + "word " * 40 * size, "max_tokens": 3}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=DEADLINE_S).status_code == 200
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert len(trace.read_text().splitlines()) == 11
    fit = subprocess.run([*ENGINE, "fit-cost", str(steps)], capture_output=True, text=True, check=True)
    assert json.loads(fit.stdout)["costs"]["prefill_token_s"] > 0
    assert json.loads(fit.stdout)["num_layers"] == SIM_MODEL.num_layers > 1


def test_what_was_recorded_outlasts_a_killed_server(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    process = start("--record", str(path), "--record-max-bytes", "4000")
    url = str(announcement(process)["url"])
    answered = set()
    for _ in range(40):  # enough for a second part
        body = {"prompt": "word " * 200, "max_tokens": 2}
        answered.add(httpx.post(f"{url}/v1/completions", json=body, timeout=DEADLINE_S).json()["id"])
    until(lambda: num_lines(tmp_path) == len(answered))
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    parts = list(tmp_path.glob("trace*.jsonl"))
    assert len(parts) > 1
    assert {row.id for part in parts for row in open_trace(part).rows} == answered


def num_lines(directory: Path) -> int:
    """Rows on disk, without the headers."""
    texts = [part.read_text() for part in directory.glob("trace*.jsonl")]
    return sum(text.count("\n") - 1 for text in texts if text)
