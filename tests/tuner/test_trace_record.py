"""`tuner trace record` as a command: what it says, and what it refuses. What it records: tests/loadtests."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from engine.core.redaction import BLOCK_CHARS
from loadtests.selftest.scripted_server import DONE, Script, ScriptedServer, Write, event, text
from loadtests.traces.files import open_trace
from tests.patience import DEADLINE_S
from tests.tuner.engines import run_tuner, sim_engine
from tests.tuner.test_cli_errors import fails

ANSWER = Script((Write(0.0, text() + text() + event({}, finish="stop") + DONE, 2),))


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    arguments = ("trace", "record", "--from", "http://127.0.0.1:9", "--out", str(tmp_path / "t.jsonl"))
    assert "no answer from http://127.0.0.1:9" in fails(tmp_path, 1, *arguments)
    assert not (tmp_path / "t.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--from", "http://127.0.0.1:9"), "--out"),
        (("--out", "t.jsonl"), "--from"),
        (("--from", "x", "--out", "t.jsonl", "--port", "70000"), "--port"),
        (("--from", "x", "--out", "t.jsonl", "--max-bytes", "1k"), "--max-bytes"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    assert named in fails(tmp_path, 2, "trace", "record", *arguments)


def test_addresses_and_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with ScriptedServer({}) as server, socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        record = ("trace", "record", "--from", server.url, "--out")
        assert f":{port}" in fails(tmp_path, 1, *record, str(tmp_path / "t.jsonl"), "--port", port)
        assert "cannot record" in fails(
            tmp_path, 1, *record, str(tmp_path / "file" / "t.jsonl"), "--port", "0"
        )
        assert "address" in fails(tmp_path, 1, "trace", "record", "--from", "up:8080", "--out", "t.jsonl")


def test_a_server_that_wants_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    with sim_engine(tmp_path, "--api-key-file", str(keys)) as url:
        record = ("trace", "record", "--from", url, "--out", str(tmp_path / "t.jsonl"))
        assert "--api-key-file" in fails(tmp_path, 1, *record)


def test_a_server_without_a_tokenizer_is_recorded_in_characters(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    code = "from tuner.cli import main; main()"
    with ScriptedServer({7: ANSWER}, has_tokenizer=False) as server:
        command = [sys.executable, "-c", code, "trace", "record", "--port", "0", "--from", server.url]
        pipe = subprocess.PIPE
        with subprocess.Popen([*command, "--out", str(out)], stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stderr
            url = process.stderr.readline().split("send to ")[1].split()[0]
            assert "no /tokenize" in process.stderr.readline()
            body = {"messages": [{"role": "user", "content": "x" * 300}], "max_tokens": 7}
            request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                assert answer.read().endswith(DONE)
            process.send_signal(signal.SIGTERM)
            said, errors = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0
    assert said == f"{out}: 1 requests\n"
    assert "estimated lengths" in errors
    trace = open_trace(out)
    assert (trace.header.block, trace.header.text_block) == (0, BLOCK_CHARS)
    (row,) = trace.rows
    assert (len(row.prefix), row.output_tokens, row.estimated) == (2, 2, ("in", "out"))


def test_help_is_fast(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from tuner.cli import main\n"
        "try: main(['trace', 'record', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ['uvicorn', 'httpx', 'starlette', 'numpy']\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert run_tuner(tmp_path, "trace", "record", "--help")[0] == 0
