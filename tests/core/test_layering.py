from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.core import layering
from engine.core.config import parse_config
from engine.core.cost_model import UNFITTED, Work
from engine.core.layering import Unread
from engine.core.pace import Pace
from engine.core.plan import LayeredPass, PrefillChunk
from engine.core.policy import plan_prefill
from tests.core.fakes import MODEL, Engine, chunks_of, prefill_tokens, request

DEEP = replace(MODEL, num_layers=32)
STREAMS = Work.of_decode([100, 200, 300])


def prompt(num_tokens: int, start: int = 0, num_undivided: int | None = None) -> Unread:
    return Unread("p", start, num_tokens, waited_s=0.0, num_undivided=num_undivided)


passes = st.builds(
    lambda start, layers, more: LayeredPass(start, layers + more, layers),
    st.integers(0, 5000), st.integers(2, 80), st.integers(0, 9000),
)  # fmt: skip


@given(passes)
def test_every_layer_ends_at_a_position_of_its_own(layered: LayeredPass) -> None:
    halts = [layered.halt(n) for n in range(layered.num_layers + 1)]
    assert halts == sorted(set(halts))
    assert (halts[0], halts[-1]) == (layered.start, layered.end)
    assert [layered.layers_at(halt) for halt in halts] == list(range(layered.num_layers + 1))
    assert [layered.next_halt(halt) for halt in halts[:-1]] == halts[1:]


@given(passes, st.floats(0, 1))
def test_a_halt_is_never_beyond_what_was_asked_for(layered: LayeredPass, share: float) -> None:
    position = layered.start + int(share * layered.num_tokens)
    halt = layered.last_halt(position)
    assert halt <= position
    assert halt == layered.end or layered.next_halt(halt) > position


@given(st.integers(1, 20_000), st.integers(1, 3000), st.sampled_from([1, 7, 24, 28, 30, 32, 61, 80]))
def test_a_step_does_so_many_whole_layers_that_it_reads_what_it_may(
    num_tokens: int, step_tokens: int, num_layers: int
) -> None:
    layered = layering.begin(prompt(num_tokens), step_tokens, replace(MODEL, num_layers=num_layers))
    assume(layered)
    assert layered is not None
    assert step_tokens < layered.num_tokens <= min(num_tokens, layering.MOST_TOKENS)
    layers = layered.layers_at(layered.last_halt(step_tokens))
    assert layers >= 4
    if layered.num_tokens < num_tokens:
        assert layered.halt(layers) >= step_tokens - 1


@pytest.mark.parametrize("step_tokens", [256, 512, 1024, 2048])
def test_a_long_prompt_goes_through_a_large_model_eight_steps_at_a_time(step_tokens: int) -> None:
    layered = layering.begin(prompt(100_000), step_tokens, DEEP)
    assert layered == LayeredPass(0, min(8 * step_tokens, 8192), 32)


def test_what_a_step_can_read_at_once_is_a_chunk() -> None:
    assert layering.begin(prompt(500), 512, DEEP) is None
    assert layering.begin(prompt(100_000), 2, DEEP) is None  # fewer tokens than layers
    assert layering.begin(prompt(100_000), 512, replace(DEEP, num_layers=7)) is None


def test_a_chunk_that_no_pass_exceeds_is_read_at_once() -> None:
    pace = Pace(UNFITTED, proven=True)
    for knobs, decoding in (({"prefill_chunk_tokens": 16384}, STREAMS), ({"solo_chunk_tokens": 0}, Work())):
        (chunk,) = plan_prefill([prompt(30_000)], decoding, parse_config(knobs), pace, DEEP)
        assert chunk.num_tokens == (16384 if decoding.decode_rows else 30_000)
        assert chunk.layered is None


def test_the_pass_ends_where_caches_must_be_halted() -> None:
    config = parse_config({"prefill_chunk_tokens": 100})
    unread = prompt(2000, start=50, num_undivided=330)
    (chunk,) = plan_prefill([unread], STREAMS, config, Pace(UNFITTED, proven=True), DEEP)
    assert chunk.layered == LayeredPass(50, 330, 32)


def test_a_shares_cost_is_its_share_of_the_pass() -> None:
    layered = LayeredPass(1000, 800, 32)
    halts = [layered.halt(n) for n in range(0, 33, 4)]
    chunks = [PrefillChunk("p", a, b - a, False, layered) for a, b in pairwise(halts)]
    costs = [UNFITTED.seconds(Work.of_prefill([chunk])) for chunk in chunks]
    assert costs == pytest.approx([UNFITTED.prefill_seconds(800, 1000) / 8] * 8)
    step = Work.of_step([100, 200], chunks[:1], one_pass=True)
    assert step.num_decodes == 1  # nothing that they could share a pass with
    assert Work.of_step([100], [*chunks[:1], PrefillChunk("q", 0, 9, True)], one_pass=True).num_decodes == 0


@given(st.integers(0, 8000), st.floats(0.25, 5.0))
def test_a_paced_share_keeps_the_target_and_wastes_less_than_a_layer(start: int, target_s: float) -> None:
    config = parse_config({"prefill_policy": "paced", "pause_target_s": target_s})
    (chunk,) = plan_prefill([prompt(100_000, start)], STREAMS, config, Pace(UNFITTED, proven=True), DEEP)
    assume(chunk.layered)
    assert chunk.layered is not None
    step_s = UNFITTED.seconds(Work.of_step([100, 200, 300], [chunk], one_pass=True))
    layer_s = UNFITTED.prefill_seconds(chunk.layered.num_tokens, start) / 32
    assert step_s <= target_s + 1e-9 or chunk.layered.layers_at(chunk.end) == 1
    assert step_s > target_s - 1.1 * layer_s


def test_knobs_that_turn_small_meet_a_pass_under_way_a_layer_a_step() -> None:
    engine = Engine(DEEP, prefill_chunk_tokens=256, solo_chunk_tokens=256)
    engine.submit(request("stream", 4, 400))
    engine.step(2)
    engine.submit(request("long", 2048, 2, engine.clock()))
    engine.step()
    engine.configure(2, prefill_chunk_tokens=16)
    assert [prefill_tokens(engine.step()) for _ in range(3)] == [64, 64, 64]
    engine.run()
    assert sum(num_tokens for _, num_tokens in chunks_of(engine.plans, "long")) == 2048


def test_streams_write_and_a_newcomer_is_read_beside_a_pass() -> None:
    engine = Engine(DEEP, prefill_chunk_tokens=256, solo_chunk_tokens=256)
    engine.submit(request("stream", 4, 400))
    engine.step(2)
    engine.submit(request("long", 2048, 2, engine.clock()))
    engine.step(2)
    engine.submit(request("short", 100, 2, engine.clock()))
    plan = engine.step()
    assert plan.decode == ("stream",)
    assert {c.request_id: c.num_tokens for c in plan.prefill} == {"long": 128, "short": 100}
    assert [bool(c.layered) for c in plan.prefill] == [True, False]
