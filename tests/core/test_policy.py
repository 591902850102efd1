from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.config import PrefillOrder, SchedulerConfig, parse_config
from engine.core.cost_model import UNFITTED, CostModel, Work
from engine.core.executor import ModelInfo
from engine.core.layering import Unread
from engine.core.pace import LEAST_SHARE, Pace
from engine.core.policy import order_prompts, plan_prefill

STREAMS = Work.of_decode([100, 200, 300])
NOBODY = Work()
KNOWN = Pace(UNFITTED, proven=True)
MODEL = ModelInfo("fake", context_tokens=8192, kv_capacity_tokens=100_000)
GRID = replace(MODEL, chunk_grid_tokens=256)


def unread(*lengths: int, start: int = 0) -> list[Unread]:
    return [Unread(f"p{i}", start, length, waited_s=10.0 - i) for i, length in enumerate(lengths)]


def plan(prompts: list[Unread], decoding: Work = STREAMS, **knobs: object) -> dict[str, int]:
    chunks = plan_prefill(prompts, decoding, parse_config(knobs), KNOWN, MODEL)
    return {chunk.request_id: chunk.num_tokens for chunk in chunks}


def test_short_prompts_are_packed_into_one_budget() -> None:
    assert plan(unread(10, 20, 30), prefill_chunk_tokens=64) == {"p0": 10, "p1": 20, "p2": 30}


def test_the_budget_is_a_total_over_prompts() -> None:
    assert plan(unread(50, 50, 50), prefill_chunk_tokens=80) == {"p0": 50, "p1": 30}


def test_a_scrap_of_budget_is_not_worth_a_chunk_that_completes_nothing() -> None:
    assert plan(unread(60, 500), prefill_chunk_tokens=64) == {"p0": 60}
    assert plan(unread(60, 4), prefill_chunk_tokens=64) == {"p0": 60, "p1": 4}


def test_shortest_first_still_gives_the_oldest_its_share() -> None:
    assert plan(unread(1000, 500, 60), prefill_chunk_tokens=64, prefill_order="shortest") == {
        "p2": 48,
        "p0": 16,
    }


def test_a_short_prompt_is_packed_beside_a_long_one_that_came_first() -> None:
    assert plan(unread(1000, 500, 40), prefill_chunk_tokens=64) == {"p0": 24, "p2": 40}


def test_nobody_streaming_reads_the_solo_chunk_and_zero_means_everything() -> None:
    assert plan(unread(9000), NOBODY, solo_chunk_tokens=2048) == {"p0": 2048}
    assert plan(unread(9000, 50), NOBODY, solo_chunk_tokens=2048) == {"p0": 1998, "p1": 50}
    assert plan(unread(9000, 50), NOBODY, solo_chunk_tokens=0) == {"p0": 9000, "p1": 50}


def test_whole_reads_one_prompt_in_one_pass() -> None:
    assert plan(unread(9000, 50), prefill_policy="whole") == {"p0": 9000}


def test_whole_gives_the_oldest_its_share_beside_a_shorter_one() -> None:
    assert plan(unread(9000, 80, 60), prefill_policy="whole", prefill_order="shortest") == {
        "p0": 20,
        "p2": 60,
    }
    assert plan(unread(70, 60), prefill_policy="whole", prefill_order="shortest") == {"p0": 20, "p1": 60}


def test_a_completing_chunk_says_so() -> None:
    chunks = plan_prefill(unread(40, 60), STREAMS, parse_config({"prefill_chunk_tokens": 70}), KNOWN, MODEL)
    assert [chunk.completes_prompt for chunk in chunks] == [True, False]


@given(st.integers(0, 8000), st.floats(0.05, 5.0))
def test_paced_reads_the_largest_chunk_that_keeps_the_target(start: int, target_s: float) -> None:
    config = parse_config({"prefill_policy": "paced", "pause_target_s": target_s})
    (chunk,) = plan_prefill(unread(100_000, start=start), STREAMS, config, KNOWN, MODEL)
    step_s = UNFITTED.seconds(STREAMS + Work.of_prefill([chunk]))
    anyway_s = UNFITTED.seconds(STREAMS) + UNFITTED.chunk_s
    most_s = max(target_s, anyway_s + LEAST_SHARE * max(target_s, anyway_s))
    assert step_s <= most_s + 1e-9 or chunk.num_tokens == 1
    larger = UNFITTED.prefill_seconds(chunk.num_tokens + 1, start) + UNFITTED.seconds(STREAMS)
    assert larger > target_s - 1e-9


@given(st.integers(0, 8000), st.floats(0.1, 50.0))
def test_a_paced_chunk_lies_on_the_grid_at_little_loss(start: int, target_s: float) -> None:
    config = parse_config({"prefill_policy": "paced", "pause_target_s": target_s})
    prompts = unread(100_000, start=start)
    (anywhere,) = plan_prefill(prompts, STREAMS, config, KNOWN, MODEL)
    (chunk,) = plan_prefill(prompts, STREAMS, config, KNOWN, GRID)
    if anywhere.num_tokens < 256:
        assert chunk == anywhere
    else:
        lost = anywhere.num_tokens - chunk.num_tokens
        assert chunk.num_tokens % 256 == 0
        assert 0 <= lost < max(256, anywhere.num_tokens / 4)


def test_the_end_of_a_prompt_need_not_lie_on_the_grid() -> None:
    config = parse_config({"prefill_policy": "paced", "pause_target_s": 60})
    (chunk,) = plan_prefill(unread(1111), STREAMS, config, KNOWN, GRID)
    assert chunk.completes_prompt


def test_a_target_that_nothing_keeps_does_not_stop_all_reading() -> None:
    many = Work.of_decode([2000] * 64)
    anyway_s = UNFITTED.seconds(many) + UNFITTED.chunk_s
    for target_s in (0.001, 0.2):
        config = parse_config({"prefill_policy": "paced", "pause_target_s": target_s})
        (chunk,) = plan_prefill(unread(5000), many, config, KNOWN, MODEL)
        tokens_s = UNFITTED.prefill_seconds(chunk.num_tokens) - UNFITTED.chunk_s
        assert tokens_s == pytest.approx(LEAST_SHARE * anyway_s, rel=0.05)


def test_however_slow_the_machine_chunks_are_not_too_small_to_get_on() -> None:
    pace = Pace(UNFITTED)
    config = parse_config({"prefill_policy": "paced", "pause_target_s": 0.2})
    read = 0
    for _ in range(200):
        (chunk,) = plan_prefill(unread(100_000), STREAMS, config, pace, MODEL)
        pace.note(Work.of_prefill([chunk]) + STREAMS, 0.5 + 0.001 * chunk.num_tokens)
        read += chunk.num_tokens
    assert read > 200 * 10


def test_a_later_paced_chunk_is_smaller() -> None:
    knobs = {"prefill_policy": "paced", "pause_target_s": 0.5}
    early, late = plan(unread(5000), **knobs), plan(unread(5000, start=6000), **knobs)
    assert late["p0"] < early["p0"]


def test_paced_shares_its_time_over_prompts() -> None:
    knobs = {"prefill_policy": "paced", "pause_target_s": 0.5}
    chunks = plan_prefill(
        unread(5000, 20, 30), STREAMS, parse_config({**knobs, "prefill_order": "shortest"}), KNOWN, MODEL
    )
    taken = {chunk.request_id: chunk.num_tokens for chunk in chunks}
    assert set(taken) == {"p0", "p1", "p2"}
    assert (taken["p1"], taken["p2"]) == (20, 30)
    assert UNFITTED.seconds(STREAMS + Work.of_prefill(chunks)) <= 0.5


def test_free_work_has_no_largest_chunk() -> None:
    free = CostModel(0, 0, 0, 0, 0, 0)
    config = parse_config({"prefill_policy": "paced"})
    (chunk,) = plan_prefill(unread(5000), STREAMS, config, Pace(free, proven=True), MODEL)
    assert chunk.num_tokens == 5000


def test_aged_orders_work_that_costs_nothing_by_its_wait() -> None:
    free = CostModel(0, 0, 0, 0, 0, 0)
    late, early = Unread("late", 0, 10, waited_s=1.0), Unread("early", 0, 10, waited_s=2.0)
    assert order_prompts([late, early], PrefillOrder.AGED, free) == [early, late]


def test_aged_lets_a_long_wait_outweigh_a_short_prompt() -> None:
    old_long, new_short = Unread("old", 0, 1000, waited_s=900.0), Unread("new", 0, 50, waited_s=0.5)
    assert order_prompts([new_short, old_long], PrefillOrder.AGED, UNFITTED)[0] is old_long
    assert order_prompts([old_long, new_short], PrefillOrder.SHORTEST, UNFITTED)[0] is new_short
    assert SchedulerConfig().prefill_order is PrefillOrder.FCFS
