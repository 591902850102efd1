from __future__ import annotations

import dataclasses

from engine.core.config import PrefillPolicy, SchedulerConfig
from engine.core.cost_model import UNFITTED
from engine.core.executor import ModelInfo
from tuner.search.limits import Floor, bound_of, floor_of
from tuner.trials import Outcome

SMALLEST = Outcome(
    config=SchedulerConfig(prefill_chunk_tokens=16), long_ttft_p95_s=9.0, long_ttft_n=3, worst_pause_s=0.6,
    shed_rate=0.0, replicates=1, num_requests=12,
)  # fmt: skip
TOGETHER = ModelInfo("m", context_tokens=8192, kv_capacity_tokens=100_000)
APART = dataclasses.replace(TOGETHER, one_pass=False)
IN_LAYERS = dataclasses.replace(TOGETHER, num_layers=32)


def test_a_decode_step_beyond_the_slo_makes_it_impossible() -> None:
    assert "a decode step alone takes 0.480 s" in str(Floor(0.48, 0.5).verdict(0.5))


def test_so_does_the_smallest_chunk_beside_it() -> None:
    floor = floor_of(UNFITTED, 0.4, APART, rows=3)
    assert floor.chunk_s > 0.4
    assert "smallest chunk" in str(floor.verdict(0.45))
    assert floor.verdict(1.0) is None


def test_rows_and_chunks_that_go_together_share_a_pass() -> None:
    together = floor_of(UNFITTED, 0.09, TOGETHER, rows=3)
    apart = floor_of(UNFITTED, 0.09, APART, rows=3)
    assert 0.09 <= together.chunk_s < apart.chunk_s


def test_a_share_of_a_pass_bears_a_share_of_what_a_chunk_costs() -> None:
    in_layers, apart = (floor_of(UNFITTED, 0.09, model, rows=3) for model in (IN_LAYERS, APART))
    assert 0.09 < in_layers.chunk_s < apart.chunk_s - UNFITTED.chunk_s / 2


def test_what_bounds_the_pause_is_told_apart() -> None:
    floor = Floor(0.1, 0.2)
    assert "even the smallest chunks" in bound_of(SMALLEST, floor, 0.5, 0.6).reason
    assert "something else held up" in bound_of(SMALLEST, floor, 0.5, 0.3).reason
    refused = dataclasses.replace(SMALLEST, shed_rate=0.2)
    assert "more arrives than this machine carries" in bound_of(refused, floor, 0.5, 0.6).reason
    larger = dataclasses.replace(SMALLEST, config=SchedulerConfig(prefill_chunk_tokens=128))
    assert "many streams share each step" in bound_of(larger, floor, 0.5, 0.6, hopeful=False).reason
    assert "more time" in bound_of(larger, floor, 0.5, 0.6).help
    paced = dataclasses.replace(
        SMALLEST,
        config=SchedulerConfig(prefill_policy=PrefillPolicy.PACED, prefill_chunk_tokens=16),
    )
    assert "smallest chunks" not in bound_of(paced, floor, 0.5, 0.6).reason
    assert "a decode step alone" in bound_of(SMALLEST, Floor(0.49, 0.5), 0.5, 0.6).reason
