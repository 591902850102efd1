from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.admission import RefusalCode, Refused
from engine.core.executor import CheckpointSizes, ModelInfo
from engine.core.request import FinishReason, Request
from tests.core.fakes import MODEL, Engine, chunks_of

DIVISIBLE = replace(MODEL, checkpoints=CheckpointSizes(token_bytes=10, capacity_bytes=1 << 20))
WINDOWED = replace(
    MODEL, checkpoints=CheckpointSizes(4, windows=((16, 6),), state_bytes=50, capacity_bytes=1 << 20)
)
BOTH_KINDS = pytest.mark.parametrize("model", [DIVISIBLE, WINDOWED], ids=["divisible", "windowed"])


def chat(request_id: str, *messages: Sequence[int], output: int = 4, at_s: float = 0.0) -> Request:
    """A prompt of messages, two tokens of a template behind the last."""
    prompt = [token for message in messages for token in message]
    ends = [sum(len(m) for m in messages[: n + 1]) for n in range(len(messages))]
    return Request(
        id=request_id,
        prompt=[*prompt, 0, 0],
        max_tokens=output,
        arrived_at_s=at_s,
        boundaries=tuple(ends),
    )


def message(seed: int, length: int) -> list[int]:
    return [seed * 1000 + n for n in range(length)]


def num_read(engine: Engine, request_id: str) -> int:
    return sum(num_tokens for _, num_tokens in chunks_of(engine.plans, request_id))


SYSTEM = message(1, 400)


@BOTH_KINDS
def test_a_prefix_that_was_read_is_not_read_again(model: object) -> None:
    engine = Engine(model=model)
    engine.submit(chat("a", SYSTEM, message(2, 50)))
    engine.run()
    engine.submit(chat("b", SYSTEM, message(3, 60), at_s=engine.clock()))
    engine.run()
    saved = 400 if model is WINDOWED else 384
    assert num_read(engine, "b") == 462 - engine.ends()["b"].timeline.cached_tokens
    assert engine.ends()["b"].timeline.cached_tokens >= saved
    assert engine.ends()["a"].timeline.cached_tokens == 0


@BOTH_KINDS
def test_a_conversation_reads_only_what_is_new(model: object) -> None:
    engine = Engine(model=model)
    turns = [SYSTEM, message(2, 50)]
    engine.submit(chat("turn1", *turns))
    engine.run()
    engine.submit(chat("turn2", *turns, message(3, 70), message(4, 40)))
    engine.run()
    assert engine.ends()["turn2"].timeline.cached_tokens == 450
    assert engine.scheduler.occupancy.prefix_cache.num_bytes == engine.executor.checkpoint_bytes


@BOTH_KINDS
def test_the_last_token_of_a_repeated_prompt_is_read(model: object) -> None:
    engine = Engine(model=model)
    for name in ("a", "b", "c"):
        engine.submit(chat(name, SYSTEM))
        engine.run()
    ends = engine.ends()
    assert [ends[name].timeline.cached_tokens for name in "abc"] == [0, 400, 400]
    assert all(end.reason is FinishReason.LENGTH for end in ends.values())


@BOTH_KINDS
@pytest.mark.parametrize("order", ["fcfs", "shortest", "aged"])
def test_two_that_arrive_together_read_what_they_share_once(model: object, order: str) -> None:
    engine = Engine(model=model, solo_chunk_tokens=64, prefill_order=order)
    engine.submit(chat("a", SYSTEM, message(2, 90)), chat("b", SYSTEM, message(3, 50)))
    engine.run()
    assert num_read(engine, "a") + num_read(engine, "b") <= 400 + 92 + 52 + 16


@BOTH_KINDS
def test_who_shares_a_prefix_does_not_wait_for_all_of_a_layered_pass(model: ModelInfo) -> None:
    engine = Engine(model=replace(model, num_layers=32), solo_chunk_tokens=128)
    engine.submit(chat("a", SYSTEM, message(2, 3000)), chat("b", SYSTEM, message(3, 60)))
    engine.run()
    first_b = next(i for i, plan in enumerate(engine.plans) if any(c.request_id == "b" for c in plan.prefill))
    read_before = sum(c.num_tokens for plan in engine.plans[:first_b] for c in plan.prefill)
    assert any(c.layered for plan in engine.plans for c in plan.prefill)
    assert read_before <= 400 + 128
    assert engine.ends()["b"].timeline.cached_tokens >= 384


def test_who_comes_late_does_not_wait_for_the_rest_of_a_pass_that_is_longer_than_what_it_spares() -> None:
    started = []
    for shared in (200, 1800):
        engine = Engine(replace(DIVISIBLE, num_layers=32), solo_chunk_tokens=600, prefill_chunk_tokens=600)
        engine.submit(chat("a", message(1, shared) + message(2, 2400 - shared)))
        engine.step(3)
        engine.submit(chat("b", message(1, shared) + message(3, 60), at_s=engine.clock()))
        engine.step()
        started.append(bool(chunks_of(engine.plans, "b")))
        engine.run()
    assert started == [True, False]


@BOTH_KINDS
def test_plain_prompts_that_begin_alike_share_without_a_boundary(model: object) -> None:
    engine = Engine(model=model, solo_chunk_tokens=100)
    engine.submit(chat("a", SYSTEM + message(2, 900)), chat("b", SYSTEM + message(3, 50)))
    engine.run()
    assert engine.ends()["b"].timeline.cached_tokens == 384
    first = engine.ends()
    assert (first["b"].timeline.ended_at_s or 0) < (first["a"].timeline.ended_at_s or 0)


def test_who_waits_goes_on_alone_when_the_reader_is_aborted() -> None:
    engine = Engine(model=DIVISIBLE, solo_chunk_tokens=64)
    engine.submit(chat("a", SYSTEM, message(2, 90)), chat("b", SYSTEM, message(3, 50)))
    engine.step(2)
    assert num_read(engine, "b") == 0
    engine.scheduler.finish("a", FinishReason.ABORTED, engine.clock())
    engine.run()
    assert num_read(engine, "b") == 452


def test_the_door_counts_uncached_tokens() -> None:
    engine = Engine(model=DIVISIBLE, max_running_requests=1, max_waiting_prefill_tokens=300)
    engine.submit(chat("a", SYSTEM))
    engine.run()
    engine.submit(chat("b", message(5, 30), output=50))
    engine.step()
    known, unknown = engine.submit(chat("c", SYSTEM, message(2, 90)), chat("d", message(7, 400)))
    assert not isinstance(known, Refused)
    assert isinstance(unknown, Refused)
    assert unknown.code is RefusalCode.PREFILL_BACKLOG
    assert engine.scheduler.occupancy.waiting_prefill_tokens == 92
    engine.run()


def test_a_predicted_time_to_the_first_token_leaves_out_what_is_held() -> None:
    engine = Engine(model=DIVISIBLE)
    (first,) = engine.submit(chat("a", SYSTEM))
    engine.run()
    (second,) = engine.submit(chat("b", SYSTEM))
    assert second.predicted_ttft_s < first.predicted_ttft_s / 5  # type: ignore[attr-defined]


def test_what_waits_counts_its_uncached_tokens_for_the_next_at_the_door() -> None:
    engine = Engine(model=DIVISIBLE, max_running_requests=1, max_waiting_prefill_tokens=300)
    engine.submit(chat("a", SYSTEM))
    engine.run()
    engine.submit(chat("b", message(5, 30), output=50))
    engine.step()
    answers = engine.submit(chat("c", SYSTEM, message(2, 90)), chat("d", message(7, 150)))
    assert not any(isinstance(answer, Refused) for answer in answers)
    engine.run()


def test_a_predicted_time_to_the_first_token_leaves_out_what_others_ahead_find_held() -> None:
    predicted = []
    for ahead in (SYSTEM, message(8, 400)):
        engine = Engine(model=DIVISIBLE)
        engine.submit(chat("a", SYSTEM))
        engine.run()
        _, answer = engine.submit(chat("b", ahead), chat("c", message(9, 20)))
        predicted.append(answer.predicted_ttft_s)  # type: ignore[attr-defined]
    assert predicted[0] < predicted[1] / 5


def test_zero_bytes_turn_the_cache_off_and_free_it_at_once() -> None:
    engine = Engine(model=DIVISIBLE)
    engine.submit(chat("a", SYSTEM))
    engine.run()
    assert engine.executor.kept
    engine.configure(generation=2, prefix_cache_bytes=0)
    engine.run()
    assert not engine.executor.kept
    engine.submit(chat("b", SYSTEM))
    engine.run()
    assert engine.ends()["b"].timeline.cached_tokens == 0
    assert not engine.executor.kept


def test_prompts_without_boundaries_stay_out() -> None:
    engine = Engine(model=DIVISIBLE)
    for name in ("a", "b"):
        engine.submit(replace(chat(name, SYSTEM), boundaries=()))
        engine.run()
    assert num_read(engine, "b") == 402
    assert not engine.executor.kept


def test_what_was_saved_is_counted() -> None:
    engine = Engine(model=DIVISIBLE)
    for name in ("a", "b"):
        engine.submit(chat(name, SYSTEM))
        engine.run()
    use = engine.scheduler.occupancy.prefix_cache
    assert (use.num_queries, use.num_hits, use.queried_tokens, use.hit_tokens) == (2, 1, 804, 400)
    assert use.num_bytes == engine.executor.checkpoint_bytes > 0


conversations = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 3), st.sampled_from([5, 32, 70, 150])), min_size=1, max_size=4),
        st.integers(1, 6),
        st.integers(0, 15),
        st.one_of(st.none(), st.integers(0, 30)),
        st.integers(0, 1),
    ),
    max_size=10,
)
knobs = st.fixed_dictionaries(
    {
        "prefill_policy": st.sampled_from(["fixed", "paced", "whole"]),
        "prefill_chunk_tokens": st.integers(1, 200),
        "solo_chunk_tokens": st.integers(0, 200),
        "decode_steps_per_chunk": st.integers(1, 3),
        "prefill_order": st.sampled_from(["fcfs", "shortest", "aged"]),
        "max_running_requests": st.integers(1, 6),
        "max_queue_wait_s": st.just(86_400),
        "prefix_cache_bytes": st.sampled_from([None, 0, 700, 3000]),
    }
)


@settings(max_examples=300)
@given(
    st.sampled_from([DIVISIBLE, WINDOWED]),
    conversations,
    knobs,
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from([1, 8]),
)
def test_every_prompt_token_is_read_once_or_cached_and_the_budget_holds(
    model: ModelInfo,
    wanted: list[tuple[object, ...]],
    config: dict[str, object],
    shrink_at: int,
    ahead: bool,
    num_layers: int,
) -> None:
    engine = Engine(model=replace(model, runs_ahead=ahead, num_layers=num_layers), **config)
    aborted = set()
    for step in range(20_000):
        for index, (messages, output, arrives, leaves, priority) in enumerate(wanted):
            name = f"r{index}"
            if arrives == step:
                parts = [message(seed, length) for seed, length in messages]  # type: ignore[attr-defined]
                made = chat(name, *parts, output=output, at_s=engine.clock())  # type: ignore[arg-type]
                engine.submit(replace(made, priority=priority))  # type: ignore[arg-type]
            if leaves == step and engine.scheduler.finish(name, FinishReason.ABORTED, engine.clock()):
                aborted.add(name)
        if step == shrink_at:
            engine.configure(generation=2, **config | {"prefix_cache_bytes": 1000})
        use = engine.scheduler.occupancy.prefix_cache
        if not engine.scheduler.is_idle:
            engine.step()
            use = engine.scheduler.occupancy.prefix_cache
            assert use.num_bytes == engine.executor.checkpoint_bytes <= use.max_bytes
        elif step > 20:
            break
    ends = engine.ends()
    for index in range(len(wanted)):
        name = f"r{index}"
        if name in aborted:
            continue
        position = ends[name].timeline.cached_tokens
        for start, num_tokens in chunks_of(engine.plans, name):
            assert start == position
            position += num_tokens
        assert position == sum(length for _, length in wanted[index][0]) + 2  # type: ignore[attr-defined]
    assert set(ends) | aborted >= {f"r{i}" for i, w in enumerate(wanted) if f"r{i}" not in aborted}
    assert engine.executor.alive == set()
