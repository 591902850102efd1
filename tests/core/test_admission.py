from __future__ import annotations

from dataclasses import replace

import pytest

from engine.core.admission import Admitted, RefusalCode, Refused
from engine.core.config import parse_config
from engine.core.cost_model import UNFITTED
from engine.core.executor import ModelInfo
from engine.core.scheduler import Scheduler
from tests.core.fakes import MODEL, Engine, request


def refusal(verdict: object) -> Refused:
    assert isinstance(verdict, Refused), verdict
    return verdict


def test_what_can_never_fit_is_refused_without_a_retry() -> None:
    model = ModelInfo("m", context_tokens=1000, kv_capacity_tokens=600)
    engine = Engine(model=model)
    too_long, too_big, fits = engine.submit(
        request("a", 900, 200), request("b", 600, 100), request("c", 500, 100)
    )
    assert (refusal(too_long).code, refusal(too_long).retry_after_s) == (RefusalCode.CONTEXT_LENGTH, None)
    assert (refusal(too_big).code, refusal(too_big).retry_after_s) == (RefusalCode.KV_BUDGET, None)
    assert (refusal(too_long).room_tokens, refusal(too_big).room_tokens) == (100, 0)
    assert isinstance(fits, Admitted)


def test_kv_is_counted_in_the_blocks_it_is_allocated_in() -> None:
    model = ModelInfo("m", context_tokens=1000, kv_capacity_tokens=511, kv_block_tokens=256)
    engine = Engine(model=model)
    fits, too_big, waits = engine.submit(request("a", 200, 56), request("b", 200, 57), request("c", 10, 10))
    assert isinstance(fits, Admitted)
    assert refusal(too_big).code is RefusalCode.KV_BUDGET
    assert refusal(too_big).room_tokens == 56
    assert isinstance(waits, Admitted)
    engine.step()
    occupancy = engine.scheduler.occupancy
    assert (occupancy.kv_tokens, occupancy.num_waiting) == (256, 1)
    assert occupancy.kv_used_tokens == 201  # the first token is on its way


def test_a_full_queue_refuses_with_the_predicted_wait() -> None:
    engine = Engine(max_running_requests=1, max_waiting_requests=1)
    _, _, third = engine.submit(request("a", output=100), request("b"), request("c"))
    assert refusal(third).code is RefusalCode.QUEUE_FULL
    assert refusal(third).retry_after_s
    assert refusal(third).retry_after_s > 0


def test_a_queue_of_none_still_serves_while_slots_are_free() -> None:
    engine = Engine(max_running_requests=2, max_waiting_requests=0)
    engine.submit(request("a"))
    engine.step()
    verdicts = engine.submit(request("b"), request("c"))
    assert isinstance(verdicts[0], Admitted)
    assert refusal(verdicts[1]).code is RefusalCode.QUEUE_FULL


def test_a_slot_is_taken_while_its_prompt_is_still_being_read() -> None:
    engine = Engine(max_running_requests=1, max_waiting_requests=0, solo_chunk_tokens=64)
    engine.submit(request("reading", 1000))
    engine.step()
    (verdict,) = engine.submit(request("b"))
    assert refusal(verdict).code is RefusalCode.QUEUE_FULL


def test_a_burst_that_the_free_slots_hold_is_not_a_queue() -> None:
    engine = Engine(max_running_requests=4, max_waiting_requests=0, max_waiting_prefill_tokens=10)
    *held, beyond = engine.submit(*(request(f"r{i}", 50) for i in range(5)))
    assert all(isinstance(verdict, Admitted) for verdict in held)
    assert refusal(beyond).code is RefusalCode.QUEUE_FULL


def test_waiting_prompt_tokens_are_bounded() -> None:
    engine = Engine(max_running_requests=1, max_waiting_prefill_tokens=500)
    verdicts = engine.submit(request("a", 10, 50), request("b", 400), request("c", 400))
    assert refusal(verdicts[2]).code is RefusalCode.PREFILL_BACKLOG


def test_a_predicted_first_token_beyond_the_limit_is_refused() -> None:
    engine = Engine(max_queue_wait_s=5.0)
    verdicts = engine.submit(*(request(f"r{i}", 900, 2) for i in range(4)))
    assert isinstance(verdicts[0], Admitted)
    assert refusal(verdicts[-1]).code is RefusalCode.QUEUE_WAIT


def test_nobody_is_refused_for_a_time_that_is_only_guessed() -> None:
    scheduler = Scheduler(MODEL, parse_config({"max_queue_wait_s": 5.0}))
    cold = [scheduler.submit(request(f"r{i}", 900, 2)) for i in range(8)]
    assert all(isinstance(verdict, Admitted) for verdict in cold)
    scheduler.calibrate(UNFITTED)
    assert refusal(scheduler.submit(request("late", 900, 2))).code is RefusalCode.QUEUE_WAIT


def test_an_idle_engine_reads_even_a_prompt_slower_than_the_limit() -> None:
    (verdict,) = Engine(max_queue_wait_s=0.01).submit(request("a", 4000, 2))
    assert isinstance(verdict, Admitted)


def test_a_stopping_engine_finishes_what_is_inside_and_admits_nobody() -> None:
    engine = Engine()
    engine.submit(request("inside"))
    engine.scheduler.stop()
    (verdict,) = engine.submit(request("late"))
    engine.run()
    assert refusal(verdict).code is RefusalCode.STOPPING
    assert set(engine.ends()) == {"inside"}


@pytest.mark.parametrize("decode_steps", [1, 4])
@pytest.mark.parametrize("policy", ["fixed", "paced", "whole"])
@pytest.mark.parametrize("num_layers", [1, 32])
def test_the_predicted_ttft_is_near_the_simulated_one(
    policy: str, decode_steps: int, num_layers: int
) -> None:
    knobs = {"prefill_policy": policy, "decode_steps_per_chunk": decode_steps, "prefill_chunk_tokens": 32}
    engine = Engine(replace(MODEL, num_layers=num_layers), **knobs)
    engine.submit(*(request(f"stream{i}", 4, 1500) for i in range(12)))
    engine.step(4)
    sent_at_s = engine.clock()
    (verdict,) = engine.submit(request("long", 1200, 2, sent_at_s))
    engine.run()
    measured_s = engine.ends()["long"].timeline.ttft_s
    assert isinstance(verdict, Admitted)
    assert measured_s == pytest.approx(verdict.predicted_ttft_s, rel=0.15)


def test_the_predicted_ttft_behind_a_pass_under_way_is_near_the_simulated_one() -> None:
    engine = Engine(replace(MODEL, num_layers=32), prefill_chunk_tokens=256, solo_chunk_tokens=256)
    engine.submit(request("first", 4000, 2))
    engine.step(6)
    sent_at_s = engine.clock()
    (verdict,) = engine.submit(request("second", 100, 2, sent_at_s))
    assert isinstance(verdict, Admitted)
    left = [r.duration_s for r in engine.records]
    engine.run()
    reading_s = sum(r.duration_s for r in engine.records[len(left) :] if r.prefill)
    assert verdict.predicted_ttft_s == pytest.approx(reading_s, rel=0.1)
