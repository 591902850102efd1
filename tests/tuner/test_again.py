from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.cli import command_line
from tuner.commands.again import command_again
from tuner.paths import locate_database

CASES = [
    ["--slo-pause", "0.5s"],
    ["--slo-pause", "1ms", "--profile", "chat", "--budget", "10m", "--trials", "3", "--seed", "4"],
    ["--slo-pause", "333ms", "--backend", "sim", "--workers", "2", "--simulate", "0", "--fresh"],
    ["--slo-pause", "0.1s", "--engine", "http://127.0.0.1:8080", "--api-key-file", "/k y", "--no-selftest"],
    ["--slo-pause", "0.0000001s", "--model", "org/name", "--admin-key-file", "/keys"],
    ["--slo-pause", "0.01m", "--replay", "/traces/monday ‒ 8.jsonl"],
    ["--slo-pause", "0.3s", "--profile", "/profiles/mine.yaml"],
]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_the_command_again_asks_for_the_same(words: list[str]) -> None:
    asked = command_line().parse_args(["optimize", *words])
    again = command_line().parse_args(["optimize", *command_again(asked)])
    assert vars(again) == vars(asked)


def test_no_option_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    """What is neither said again nor left out on purpose would be lost silently."""
    with pytest.raises(SystemExit):
        command_line().parse_args(["optimize", "--help"])
    known = set(re.findall(r"(?<=[\s\[])--[a-z-]+", capsys.readouterr().out))
    said = {word for words in CASES for word in words if word.startswith("--")}
    assert known == said | {"--study", "--db", "--apply", "--json", "--help"}


def test_files_are_named_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    words = ["--slo-pause", "1s", "--model", "model", "--api-key-file", "key"]
    profile = command_again(command_line().parse_args(["optimize", *words, "--profile", "mine.yml"]))
    trace = command_again(command_line().parse_args(["optimize", *words, "--replay", "t.jsonl"]))
    assert {f"--model={tmp_path}/model", f"--api-key-file={tmp_path}/key"} <= {*profile, *trace}
    assert f"--profile={tmp_path}/mine.yml" in profile
    assert f"--replay={tmp_path}/t.jsonl" in trace


def test_the_database_is_named_where_it_is_not_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("EVENFLOW_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert locate_database(None).option == ""
    assert locate_database("my.db").option == str(tmp_path / "my.db")
    assert locate_database("postgresql://me:secret@host/studies").option == "postgresql://host/studies"
    monkeypatch.setenv("EVENFLOW_HOME", "state")
    assert locate_database(None).option == str(tmp_path / "state" / "evenflow.db")
