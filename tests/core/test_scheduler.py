from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.admission import Admitted
from engine.core.events import TokenEvent
from engine.core.executor import ModelInfo
from engine.core.request import FinishReason
from engine.core.timeline import PauseKind
from engine.sim.executor import TOKEN
from tests.core.fakes import MODEL, Engine, chunks_of, prefill_tokens, request

prompts = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 12), st.integers(0, 20)), max_size=12)
knobs = st.fixed_dictionaries(
    {
        "prefill_policy": st.sampled_from(["fixed", "paced", "whole"]),
        "prefill_chunk_tokens": st.integers(1, 300),
        "solo_chunk_tokens": st.integers(0, 300),
        "decode_steps_per_chunk": st.integers(1, 3),
        "prefill_order": st.sampled_from(["fcfs", "shortest", "aged"]),
        "max_running_requests": st.integers(1, 6),
        "kv_budget_tokens": st.sampled_from([None, 500]),
        "max_queue_wait_s": st.just(86_400),
    }
)


models = st.sampled_from([1, 8, 30]).map(lambda num_layers: replace(MODEL, num_layers=num_layers))


def serve(model: ModelInfo, arrivals: list[tuple[int, int, int]], config: dict[str, object]) -> Engine:
    """Submits each (prompt, output, arrival step) at its step and runs to rest."""
    engine = Engine(model, **config)
    pending = sorted(enumerate(arrivals), key=lambda entry: entry[1][2])
    step = 0
    while pending or not engine.scheduler.is_idle:
        while pending and pending[0][1][2] <= step:
            index, (prompt, output, _) = pending.pop(0)
            engine.submit(request(f"r{index}", prompt, output, engine.clock()))
        engine.step()
        step += 1
        assert step < 20_000
    return engine


@settings(max_examples=150, deadline=None)
@given(models, prompts, knobs)
def test_every_prompt_token_is_read_exactly_once_and_every_answer_is_whole(
    model: ModelInfo, arrivals: list[tuple[int, int, int]], config: dict[str, object]
) -> None:
    engine = serve(model, arrivals, config)
    ends = engine.ends()
    for index, (prompt, output, _) in enumerate(arrivals):
        request_id = f"r{index}"
        position = 0
        for start, num_tokens in chunks_of(engine.plans, request_id):
            assert start == position
            position += num_tokens
        tokens = [e for e in engine.events if isinstance(e, TokenEvent) and e.request_id == request_id]
        assert position == prompt
        assert len(tokens) == output
        assert ends[request_id].reason is FinishReason.LENGTH
    assert engine.executor.alive == set()


@settings(max_examples=150, deadline=None)
@given(models, prompts, knobs)
def test_prefill_never_exceeds_the_budget_and_the_oldest_prompt_always_advances(
    model: ModelInfo, arrivals: list[tuple[int, int, int]], config: dict[str, object]
) -> None:
    engine = serve(model, arrivals, config)
    limit = config["prefill_chunk_tokens"] if config["prefill_policy"] == "fixed" else 1 << 62
    for plan in engine.plans:
        assert len(plan.decode) == len(set(plan.decode))
        budget = limit if plan.decode else config["solo_chunk_tokens"] or 1 << 62
        assert prefill_tokens(plan) <= budget
    assert_oldest_advances(engine)


def assert_oldest_advances(engine: Engine) -> None:
    """In every step that reads, the prompt that arrived first among the unread ones gets a share."""
    unread: dict[str, int] = {}
    for plan in engine.plans:
        unread |= {r.id: r.num_prompt_tokens for r in plan.start}
        if plan.prefill:
            assert next(iter(unread)) in {chunk.request_id for chunk in plan.prefill}
        for chunk in plan.prefill:
            unread[chunk.request_id] -= chunk.num_tokens
        unread = {request_id: left for request_id, left in unread.items() if left}


def test_eight_long_prompts_share_one_budget_and_the_oldest_always_advances() -> None:
    for order in ("fcfs", "shortest", "aged"):
        engine = Engine(prefill_chunk_tokens=64, prefill_order=order)
        engine.submit(request("stream", 4, 400))
        engine.step(2)
        engine.submit(*(request(f"long{i}", 700 - 50 * i, 2) for i in range(8)))
        engine.run()
        reading = [plan for plan in engine.plans if plan.prefill and plan.decode]
        assert max(prefill_tokens(plan) for plan in reading) == 64
        assert_oldest_advances(engine)
        assert len(engine.ends()) == 9


def test_a_short_request_beside_a_stream_is_read_in_the_next_step() -> None:
    engine = Engine(prefill_chunk_tokens=64)
    engine.submit(request("stream", 4, 50))
    engine.step(3)
    engine.submit(request("short", 8, 2, engine.clock()))
    plan = engine.step()
    assert [chunk.request_id for chunk in plan.prefill] == ["short"]


def test_streams_write_one_token_in_every_step_while_a_prompt_is_read() -> None:
    engine = Engine(prefill_chunk_tokens=32)
    engine.submit(request("stream", 4, 60))
    engine.step()
    engine.submit(request("long", 620, 2))
    for _ in range(20):
        plan = engine.step()
        assert plan.decode == ("stream",)
        assert prefill_tokens(plan) == (32 if chunks_of([plan], "long")[0][0] < 608 else 12)


def test_a_row_is_freed_within_one_step_of_its_abort() -> None:
    engine = Engine(prefill_chunk_tokens=16, max_running_requests=2)
    engine.submit(request("stream", 4, 50), request("reading", 400, 5), request("queued", 8, 5))
    engine.step(3)
    for request_id in ("stream", "reading", "queued"):
        end = engine.scheduler.finish(request_id, FinishReason.ABORTED, engine.clock())
        assert end is not None
        assert end.reason is FinishReason.ABORTED
        assert engine.scheduler.finish(request_id, FinishReason.ABORTED, engine.clock()) is None
    engine.step()
    assert engine.executor.alive == set()
    engine.run()
    assert not any(request_id == "queued" for plan in engine.plans for request_id in plan.decode)


@settings(max_examples=100, deadline=None)
@given(models, prompts, knobs, st.lists(st.tuples(st.integers(0, 11), st.integers(0, 40)), max_size=12))
def test_admitted_is_finished_plus_aborted_plus_inside(
    model: ModelInfo,
    arrivals: list[tuple[int, int, int]],
    config: dict[str, object],
    aborts: list[tuple[int, int]],
) -> None:
    engine = Engine(model, **config, max_waiting_requests=4)
    verdicts = engine.submit(*(request(f"r{i}", p, o) for i, (p, o, _) in enumerate(arrivals)))
    admitted = {f"r{i}" for i, verdict in enumerate(verdicts) if isinstance(verdict, Admitted)}
    ended = set()
    for step in range(60):
        for index, at_step in aborts:
            if at_step == step and (end := engine.scheduler.finish(f"r{index}", FinishReason.ABORTED, 0.0)):
                ended.add(end.request_id)
        if not engine.scheduler.is_idle:
            engine.step()
        occupancy = engine.scheduler.occupancy
        inside = occupancy.num_running + occupancy.num_waiting
        assert len(admitted) == len(ended) + len(engine.ends()) + inside
    engine.run()
    assert admitted == ended | set(engine.ends())
    assert engine.executor.alive == set()


def test_a_refused_request_runs_nothing() -> None:
    engine = Engine(max_running_requests=1, max_waiting_requests=0)
    first, second = engine.submit(request("in"), request("out"))
    engine.run()
    assert isinstance(first, Admitted)
    assert not isinstance(second, Admitted)
    assert "out" not in {r.id for plan in engine.plans for r in plan.start}
    assert set(engine.ends()) == {"in"}


def test_a_new_config_takes_hold_at_the_next_plan_and_carries_its_generation() -> None:
    engine = Engine(prefill_chunk_tokens=64)
    engine.submit(request("stream", 4, 50))
    engine.step(2)
    engine.submit(request("long", 500, 2))
    assert prefill_tokens(engine.step()) == 64
    engine.configure(generation=2, prefill_chunk_tokens=16)
    plan = engine.step()
    assert (prefill_tokens(plan), plan.generation) == (16, 2)


def test_a_stop_token_ends_the_answer_without_being_part_of_it() -> None:
    engine = Engine()
    engine.submit(request("a", 4, 50, stop_tokens=frozenset({TOKEN}), min_tokens=3))
    engine.run()
    end = engine.ends()["a"]
    assert end.reason is FinishReason.STOP
    assert end.timeline.num_output_tokens == 3


def test_the_worst_pause_names_the_chunk_that_made_it() -> None:
    engine = Engine(prefill_policy="whole")
    engine.submit(request("stream", 4, 20))
    engine.step(5)
    engine.submit(request("long", 900, 2, engine.clock()))
    engine.run()
    cause = engine.ends()["stream"].timeline.worst_pause_cause
    assert cause is not None
    assert (cause.kind, cause.request_ids, cause.prefill_tokens) == (PauseKind.PREFILL, ("long",), 900)


def test_lowering_the_kv_budget_does_not_lock_the_queue() -> None:
    engine = Engine()
    engine.submit(request("big", 400, 100))
    engine.configure(generation=2, kv_budget_tokens=10)
    engine.run()
    assert engine.ends()["big"].reason is FinishReason.LENGTH


def test_running_requests_never_promise_more_kv_than_the_model_holds() -> None:
    engine = Engine(model=ModelInfo("small", context_tokens=300, kv_capacity_tokens=300))
    engine.submit(*(request(f"r{i}", 100, 20) for i in range(6)))
    while not engine.scheduler.is_idle:
        engine.step()
        assert engine.scheduler.occupancy.kv_tokens <= 300
    assert len(engine.ends()) == 6


def test_lower_priority_values_start_first() -> None:
    engine = Engine(max_running_requests=1)
    engine.submit(request("running"), request("later", priority=5), request("sooner", priority=-1))
    engine.run()
    assert [r.id for plan in engine.plans for r in plan.start] == ["sooner", "running", "later"]
