from __future__ import annotations

import pytest

from engine.core.cost_model import CostModel
from tuner.evaluation.sizing import Capacity
from tuner.evaluation.surroundings import Surroundings

COSTS = CostModel(0.02, 0.002, 1e-6, 0.05, 0.01, 1e-6)


def test_the_long_prompt_takes_as_long_as_asked() -> None:
    capacity = Capacity(COSTS, 0.05, 0.05, 40, 0.08, 8192)
    sizing = capacity.sizing(0.5, 3.0)
    tokens = COSTS.max_chunk_tokens(1.5, 0)
    assert tokens / sizing.prefill_tokens_per_s == pytest.approx(1.5, rel=0.01)
    assert sizing.decode_step_s >= capacity.stall_floor_s


def test_what_was_measured_survives_the_database() -> None:
    capacity = Capacity(COSTS, 0.05, 0.05, 40, 0.08, 8192)
    assert Capacity.from_mapping(capacity.to_mapping()) == capacity


def test_what_was_kept_before_there_were_surroundings_can_still_be_read() -> None:
    values = Capacity(COSTS, 0.05, 0.05, 40, 0.08, 8192).to_mapping()
    del values["surroundings"], values["unexplained"]
    assert Capacity.from_mapping(values).surroundings == Surroundings()
