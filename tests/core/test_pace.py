from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from statistics import fmean

import pytest

from engine.core.config import parse_config
from engine.core.cost_fit import fit_cost_model
from engine.core.cost_model import UNFITTED, CostModel, Work
from engine.core.errors import FitError
from engine.core.events import Event, StepRecord
from engine.core.pace import UNLIMITED, Pace
from engine.core.pipeline import Pipeline
from engine.core.plan import PrefillChunk
from engine.core.scheduler import Scheduler, run_step
from engine.sim.executor import SimExecutor, VirtualClock
from engine.sim.simulate import simulate
from tests.core.fakes import MODEL, Engine, request

DECODE = Work.of_decode([100, 200]).beside_chunks(shared=True)


def chunk(num_tokens: int) -> Work:
    return Work.of_prefill([PrefillChunk("p", 0, num_tokens, False)])


STEP = chunk(100) + DECODE
STEP_S = UNFITTED.seconds(STEP)


def fed(ratios: list[float], proven: bool = True) -> Pace:
    pace = Pace(UNFITTED, proven)
    for ratio in ratios:
        pace.note(STEP, STEP_S * ratio)
    return pace


def test_slow_steps_leave_less_of_the_target_and_a_lone_stall_does_not() -> None:
    assert fed([1.4] * 64).seconds(1.0) == pytest.approx(1.0 - 0.4 * STEP_S)
    assert fed([1.0] * 63 + [20.0]).seconds(1.0) == pytest.approx(1.0)


def test_fast_steps_leave_more_but_no_more_than_twice_as_much() -> None:
    assert fed([0.8] * 64).seconds(1.0) == pytest.approx(1.0 + 0.2 * STEP_S)
    assert fed([0.1] * 64).seconds(0.1) == 0.2


def test_what_holds_small_steps_up_is_no_share_of_large_ones() -> None:
    """A step that reads one token can be held up for as long as the step itself lasts."""
    pace = Pace(UNFITTED)
    small = chunk(1) + DECODE
    for late_s in [0.0, 0.0, 0.0, 0.05] * 16:
        pace.note(small, UNFITTED.seconds(small) + late_s)
    assert pace.seconds(1.0) == pytest.approx(0.95)


def test_ends_of_prompts_hide_nothing() -> None:
    """Most steps are small and come in on time, those near the target are late."""
    pace = Pace(UNFITTED)
    for index in range(64):
        step = chunk(10 if index % 4 else 200) + DECODE
        pace.note(step, UNFITTED.seconds(step) * (1.0 if index % 4 else 1.2))
    late_s = 0.2 * UNFITTED.seconds(chunk(200) + DECODE)
    assert pace.seconds(1.0) == pytest.approx(1.0 - late_s)


def test_only_steps_that_read_beside_streams_are_compared() -> None:
    pace = fed([1.0] * 64)
    for _ in range(64):
        pace.note(DECODE, 3 * UNFITTED.seconds(DECODE))
        pace.note(chunk(8000), 3 * UNFITTED.seconds(chunk(8000)))
    assert pace.seconds(1.0) == pytest.approx(1.0)


def test_an_unproven_model_is_used_with_care_and_no_further_than_speed_vouches_for() -> None:
    pace = Pace(UNFITTED)
    assert (pace.seconds(0.6), pace.tokens(0.6, DECODE)) == (pytest.approx(0.4), 32)
    pace.note(chunk(100) + DECODE, 0.1)
    assert (pace.seconds(0.6), pace.tokens(0.6, DECODE)) == (pytest.approx(0.4), 600)


def test_speed_is_that_of_the_larger_chunks() -> None:
    pace = Pace(UNFITTED)
    for num_tokens in [10, 100, 200] * 20:
        pace.note(chunk(num_tokens) + DECODE, 0.05 + num_tokens / 1000)
    assert pace.tokens(0.3, DECODE) == 240


def test_more_streams_than_then_leave_less_for_tokens() -> None:
    pace = fed([1.0] * 64, proven=False)
    more = Work.of_decode([100, 200] * 4)
    beside = [pace.tokens(1.0, rows) for rows in (DECODE, more.beside_chunks(shared=True))]
    assert beside[1] < beside[0]


def test_where_nothing_keeps_the_target_chunks_still_grow() -> None:
    """A step takes 0.1 s with 32 tokens as with 320."""
    pace = Pace(UNFITTED)
    pace.note(chunk(32) + DECODE, 0.1)
    assert pace.tokens(0.04, DECODE) > 32


def test_costs_that_hold_for_any_size_are_not_bounded_by_speed() -> None:
    pace = fed([1.0] * 64, proven=False)
    pace.trust_sizes()
    assert pace.tokens(0.01, DECODE) == UNLIMITED


def test_doubt_brings_the_first_care_back_but_not_the_first_size() -> None:
    pace = fed([1.0] * 64, proven=False)
    before = pace.tokens(1.0, DECODE)
    assert pace.seconds(1.0) == pytest.approx(1.0)
    pace.doubt()
    assert (pace.seconds(1.0), pace.tokens(1.0, DECODE)) == (pytest.approx(1 / 1.5), before)


def test_a_machine_that_slows_down_keeps_its_pause_target() -> None:
    """Everything takes 1.4 times as long from the third long prompt on."""
    arrivals = [request(f"stream{i}", 40, 400) for i in range(3)]
    arrivals += [request(f"long{i}", 1500, 4, 2.0 + 8.0 * i) for i in range(6)]
    steps = iter(range(1_000_000))
    slow = simulate(
        arrivals,
        Engine(prefill_policy="paced", pause_target_s=0.5).config,
        replace(UNFITTED),
        MODEL,
        noise=lambda: 1.0 if next(steps) < 200 else 1.4,
    )
    gaps = [b.at_s - a.at_s for r in slow.records for a, b in zip(r.events, r.events[1:], strict=False)]
    late = [gap for gap in gaps if gap > 0.5 * 1.1]
    assert len(late) < 0.02 * len(gaps)


class Hosted(CostModel):
    """A device that waits for a host: each step takes as long as the slower of the two."""

    HOST_S, HOST_ROW_S = 0.016, 0.0095

    def seconds(self, work: Work) -> float:
        host_s = self.HOST_S + self.HOST_ROW_S * work.decode_rows if work.prefill_tokens else 0.0
        return max(host_s, super().seconds(work))


def costs_of(**knobs: str | float) -> tuple[float, float]:
    """Long prompts beside three streams, one after the other, on a device whose costs are learned on the way.

    Returns:
        Of all prompts but the first few: the longest step that read, and mean time to first token; seconds.
    """
    clock = VirtualClock()
    model = replace(MODEL, context_tokens=64_000, kv_capacity_tokens=1 << 20)
    device = Hosted(0.01, 2.65e-5, 5e-10, 0.003, 0.006, 0.0)
    limits = {"max_queue_wait_s": 86400, "max_waiting_prefill_tokens": 1 << 30}
    scheduler = Scheduler(model, parse_config({**limits, **knobs}))
    pipeline = Pipeline(SimExecutor(model, device, clock))
    records: list[StepRecord] = []
    firsts: dict[str, float] = {}

    def took(record: StepRecord, events: list[Event]) -> None:
        records.append(record)
        firsts.update((event.request_id, clock()) for event in events if event.request_id not in firsts)

    for index in range(3):
        scheduler.submit(request(f"stream{index}", 64, 30_000))
    while len(records) < 32:
        run_step(scheduler, pipeline, clock, took)
    ttfts_s, num_before = [], 0
    for index in range(24):
        if index == 8:
            num_before = len(records)
        name, sent_at_s = f"long{index}", clock()
        scheduler.submit(request(name, 8000, 2, sent_at_s))
        while name not in firsts:
            run_step(scheduler, pipeline, clock, took)
        with suppress(FitError):  # too few steps yet
            scheduler.calibrate(fit_cost_model(records).costs)
        ttfts_s.append(firsts[name] - sent_at_s)
    longest_s = max(record.duration_s for record in records[num_before:] if record.prefill)
    return longest_s, fmean(ttfts_s[8:])


FIXED_CHUNKS = (256, 512, 1024, 2048, 4096, 8192)


@pytest.fixture(scope="module")
def fixed() -> list[tuple[float, float]]:
    return [costs_of(prefill_chunk_tokens=chunk_tokens) for chunk_tokens in FIXED_CHUNKS]


@pytest.mark.parametrize("target_s", [0.06, 0.1, 0.3])
def test_a_device_that_waits_for_its_host_keeps_its_target_and_wastes_none_of_it(
    target_s: float, fixed: list[tuple[float, float]]
) -> None:
    longest_s, ttft_s = costs_of(prefill_policy="paced", pause_target_s=target_s)
    assert longest_s <= 1.1 * target_s
    assert ttft_s <= 1.1 * min(kept_s for step_s, kept_s in fixed if step_s <= 1.1 * target_s)


def test_a_target_below_what_the_host_takes_is_missed_by_little_and_does_not_stop_all_reading(
    fixed: list[tuple[float, float]],
) -> None:
    longest_s, ttft_s = costs_of(prefill_policy="paced", pause_target_s=0.03)
    assert longest_s <= Hosted.HOST_S + 3 * Hosted.HOST_ROW_S + 0.03
    assert ttft_s < 2 * fixed[FIXED_CHUNKS.index(512)][1]
