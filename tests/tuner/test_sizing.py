from __future__ import annotations

import pytest

from engine.core.cost_model import CostModel, Work
from engine.core.events import StepRecord
from engine.core.plan import PrefillChunk
from tuner.sizing import Capacity, undisturbed

COSTS = CostModel(0.02, 0.002, 1e-6, 0.05, 0.01, 1e-6)


def decode(step: int, duration_s: float, rows: int = 1) -> StepRecord:
    return StepRecord(step, 1, 0.0, duration_s, Work.of_decode([64] * rows), (), rows, 0)


def prefill(step: int, duration_s: float, tokens: int = 64) -> StepRecord:
    chunks = (PrefillChunk("r", 0, tokens, False),)
    return StepRecord(step, 1, 0.0, duration_s, Work.of_prefill(chunks), chunks, 1, 0)


def test_a_step_that_was_held_up_or_timed_short_is_left_out() -> None:
    records = [decode(i, seconds) for i, seconds in enumerate((0.08, 0.081, 0.5, 0.079, 0.009))]
    assert [record.duration_s for record in undisturbed(records)] == [0.08, 0.081, 0.079]


def test_steps_of_different_sizes_are_not_compared() -> None:
    records = [prefill(1, 0.1, 16), prefill(2, 3.0, 1024), decode(3, 0.08, 1), decode(4, 0.3, 8)]
    assert len(undisturbed(records)) == 4


def test_the_long_prompt_takes_as_long_as_asked() -> None:
    capacity = Capacity(COSTS, 0.05, 0.05, 40, 0.08, 8192)
    sizing = capacity.sizing(0.5, 3.0)
    tokens = COSTS.max_chunk_tokens(1.5, 0)
    assert tokens / sizing.prefill_tokens_per_s == pytest.approx(1.5, rel=0.01)
    assert sizing.decode_step_s >= capacity.stall_floor_s


def test_what_was_measured_survives_the_database() -> None:
    capacity = Capacity(COSTS, 0.05, 0.05, 40, 0.08, 8192)
    assert Capacity.from_mapping(capacity.to_mapping()) == capacity
