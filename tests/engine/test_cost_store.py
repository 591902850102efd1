from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from engine.core.cost_fit import KindError
from engine.core.cost_model import CostModel
from engine.cost_store import CostStore, circumstances

COSTS = CostModel(0.1, 0.01, 0.0, 0.2, 0.02, 0.0)


def all_costs(seconds: float) -> str:
    costs = dict.fromkeys(dataclasses.asdict(COSTS), seconds)
    return json.dumps({"a": {"costs": costs, "circumstances": circumstances()}})


def test_costs_are_kept_by_model(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "state" / "costs.json")
    store.save("a", COSTS)
    store.save("b", CostModel(1, 1, 1, 1, 1, 1))
    assert CostStore(tmp_path / "state" / "costs.json").load("a") == COSTS
    assert store.load("c") is None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": 1}', '{"a": {"x": 1}}', all_costs(-1), all_costs(float("inf")), "[" * 30_000]
)
def test_a_file_of_no_use_is_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    store = CostStore(path)
    assert store.load("a") is None
    store.save("a", COSTS)
    assert store.load("a") == COSTS


@pytest.mark.parametrize("changed", ["host", "mlx"])
def test_costs_of_another_host_or_version_are_learned_anew(tmp_path: Path, changed: str) -> None:
    path = tmp_path / "costs.json"
    CostStore(path).save("a", COSTS)
    models = json.loads(path.read_text())
    models["a"]["circumstances"][changed] = "another"
    path.write_text(json.dumps(models))
    assert CostStore(path).load("a") is None


def test_what_costs_are_worth_is_kept_with_them(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    CostStore(path).save("a", COSTS, [KindError("mixed", 40, 0.07, 0.2)])
    assert json.loads(path.read_text())["a"]["errors"] == {"mixed": 0.07}


def test_without_a_file_nothing_is_kept() -> None:
    store = CostStore()
    store.save("a", COSTS)
    assert store.load("a") is None
