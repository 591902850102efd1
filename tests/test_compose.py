"""docker-compose.yml against the real commands, flags and ports."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
MODULES = {"engine": "engine.cli", "tuner": "tuner.cli", "locust": "locust"}


def help_of(command: list[str]) -> str:
    words = [word for word in command[1:] if not word.startswith("-")]
    run = [sys.executable, "-m", MODULES[command[0]], *words, "--help"]
    env = {"COLUMNS": "200", "NO_COLOR": "1", "PATH": "/usr/bin:/bin", "TERM": "dumb"}
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True, env=env).stdout


@pytest.mark.parametrize("service", SERVICES)
def test_each_command_knows_its_flags(service: str) -> None:
    command = SERVICES[service]["command"]
    # Locust's help leaves out what its file adds.
    added = (ROOT / "loadtests/locustfile.py").read_text(encoding="utf-8") if command[0] == "locust" else ""
    known = set(re.findall(r"--[\w-]+", help_of(command) + added))
    assert {word.split("=")[0] for word in command if word.startswith("--")} <= known


def flag(service: str, name: str) -> str:
    return next(
        word.split("=", 1)[1] for word in SERVICES[service]["command"] if word.startswith(f"--{name}=")
    )


def test_ports_agree() -> None:
    port = flag("engine", "port")
    assert SERVICES["engine"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f":{port}/ready" in " ".join(SERVICES["engine"]["healthcheck"]["test"])
    for service, name in (("tuner", "engine"), ("locust", "host")):
        assert flag(service, name) == f"${{ENGINE_URL:-http://engine:{port}}}"
    web_port = flag("locust", "web-port")
    assert SERVICES["locust"]["ports"] == [f"127.0.0.1:{web_port}:{web_port}"]


def test_an_engine_beyond_loopback_has_keys_and_the_others_hold_them() -> None:
    secret = "/run/secrets/evenflow-key"
    assert flag("engine", "host") == "0.0.0.0"
    for service in SERVICES:
        assert flag(service, "api-key-file") == secret
    for service in ("engine", "tuner"):
        assert flag(service, "admin-key-file") == secret


def test_the_image_copies_what_the_commands_need() -> None:
    dockerfile = (ROOT / COMPOSE["x-evenflow"]["build"]["dockerfile"]).read_text(encoding="utf-8")
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    for name in ("pyproject.toml", "README.md", "engine", "loadtests", "tuner"):
        assert re.search(rf"^COPY .*\b{re.escape(name)}\b", dockerfile, re.MULTILINE)
        assert f"!{name}\n" in kept


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_compose_itself_accepts_the_file(tmp_path: Path) -> None:
    compose = ["docker", "compose"]
    if subprocess.run([*compose, "version"], capture_output=True, check=False).returncode:
        pytest.skip("the compose plugin is not installed")
    key = tmp_path / "key"
    key.write_text("k")
    command = [*compose, "--profile", "*", "config", "--quiet"]
    env = {"EVENFLOW_KEY_FILE": str(key), "PATH": "/usr/bin:/bin:/usr/local/bin"}
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    assert checked.returncode == 0, checked.stderr
