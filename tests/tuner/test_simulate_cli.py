"""`tuner simulate`, from the command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from engine.core.cost_model import UNFITTED
from tuner import cli


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:15:{n:02d}.0000000,{900 if n % 5 == 4 else 60},{30}" for n in range(20)]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({"costs": dataclasses.asdict(UNFITTED), "ratios": [0.9, 1.0, 1.2]}))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, captured.out, captured.err


def test_a_smaller_chunk_pauses_shorter(
    capsys: pytest.CaptureFixture[str], trace: Path, costs: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    paused = []
    for chunk in (1024, 64):
        config.write_text(json.dumps({"prefill_chunk_tokens": chunk}))
        status, out, _ = run(capsys, trace, "--cost", costs, "--config", config, "--json")
        said = json.loads(out)
        assert status == 0
        assert said["counts"]["completed"] == 20
        assert said["config"]["prefill_chunk_tokens"] == chunk
        paused.append(said["worst_pause_s"])
    assert paused[1] < paused[0] / 3


def test_passes_are_halted_where_the_recorded_server_halted_them(
    capsys: pytest.CaptureFixture[str], trace: Path, costs: Path
) -> None:
    layered = costs.with_name("layered.json")
    layered.write_text(json.dumps({**json.loads(costs.read_text()), "num_layers": 32}))
    config = costs.with_name("config.json")
    config.write_text('{"prefill_chunk_tokens": 64, "solo_chunk_tokens": 64}')
    said = []
    for arguments in ((costs,), (layered,), (costs, "--layers", 32)):
        _, out, _ = run(capsys, trace, "--json", "--config", config, "--cost", *arguments)
        said.append(json.loads(out)["long_ttft_p50_s"])
    assert said[0] != said[1] == said[2]


def test_people_read_what_came_of_it(capsys: pytest.CaptureFixture[str], trace: Path, costs: Path) -> None:
    status, out, err = run(capsys, trace, "--cost", costs, "--window", "10s")
    assert (status, err) == (0, "")
    assert "requests       10: 10 completed" in out
    assert "worst pause    " in out


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ("{", "is not JSON"),
        ("[1]", "must hold a JSON object"),
        ('{"costs": {"chunk_s": 1}}', "engine fit-cost STEPS.jsonl"),
        ("{}", "engine fit-cost STEPS.jsonl"),
        (json.dumps({"costs": dataclasses.asdict(UNFITTED), "num_layers": "many"}), "holds no costs"),
        (json.dumps({"costs": dict.fromkeys(dataclasses.asdict(UNFITTED), -1)}), "holds no costs"),
    ],
)
def test_a_file_without_costs_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path, text: str | None, why: str
) -> None:
    path = tmp_path / "none.json"
    if text is not None:
        path.write_text(text)
    status, out, err = run(capsys, trace, "--cost", path)
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert str(path) in err
    assert why in err


def test_a_config_with_an_unknown_knob_is_refused(
    capsys: pytest.CaptureFixture[str], trace: Path, costs: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"chunk": 3}')
    status, _, err = run(capsys, trace, "--cost", costs, "--config", config)
    assert status == 1
    assert 'unknown knob "chunk"' in err
