from __future__ import annotations

from dataclasses import replace

import pytest

from engine.core.cost_model import UNFITTED, Work
from engine.core.pace import Pace
from engine.core.plan import PrefillChunk
from engine.sim.simulate import simulate
from tests.core.fakes import MODEL, Engine, request

CHUNK = Work.of_prefill([PrefillChunk("p", 0, 100, False)])
DECODE = Work.of_decode([100, 200])


def fed(ratios: list[float], proven: bool = True) -> Pace:
    pace = Pace(UNFITTED, proven)
    for ratio in ratios:
        pace.note(CHUNK + DECODE, UNFITTED.seconds(CHUNK + DECODE) * ratio)
    return pace


def test_slow_steps_widen_the_margin_and_a_lone_stall_does_not() -> None:
    assert fed([1.4] * 64).margin == pytest.approx(1.4)
    assert fed([1.0] * 63 + [20.0]).margin == pytest.approx(1.0)


def test_fast_steps_never_narrow_it_below_the_model() -> None:
    assert fed([0.5] * 64).margin == 1.0


def test_only_steps_that_read_are_compared() -> None:
    pace = fed([1.0] * 64)
    for _ in range(64):
        pace.note(DECODE, 3 * UNFITTED.seconds(DECODE))
    assert pace.margin == pytest.approx(1.0)


def test_an_unproven_model_is_used_with_care_and_only_doubles_what_was_tried() -> None:
    pace = Pace(UNFITTED)
    assert pace.margin == 1.5
    assert pace.max_chunk_tokens == 32
    pace.note(CHUNK, 0.1)
    assert pace.max_chunk_tokens == 200


def test_doubt_brings_the_first_care_back() -> None:
    pace = fed([1.0] * 64, proven=False)
    assert pace.margin == pytest.approx(1.0)
    pace.doubt()
    assert pace.margin == 1.5


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
