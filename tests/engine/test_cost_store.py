from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from engine.core.cost_model import CostModel
from engine.cost_store import CostStore

COSTS = CostModel(0.1, 0.01, 0.0, 0.2, 0.02, 0.0)


def all_costs(seconds: float) -> str:
    return json.dumps({"a": dict.fromkeys(dataclasses.asdict(COSTS), seconds)})


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


def test_without_a_file_nothing_is_kept() -> None:
    store = CostStore()
    store.save("a", COSTS)
    assert store.load("a") is None
