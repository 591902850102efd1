from __future__ import annotations

from dataclasses import replace

import pytest

from engine.core.config import SchedulerConfig, parse_config
from engine.core.cost_model import UNFITTED
from engine.core.executor import CheckpointSizes
from engine.core.records import Outcome, RequestRecord
from engine.core.request import Request
from engine.sim.simulate import Simulation, Wait, simulate
from tests.core.fakes import MODEL, Engine, prefill_tokens, request


def ambush() -> list[Request]:
    streams = [request(f"stream{i}", 40, 200, 0.1 * i) for i in range(3)]
    return [*streams, *(request(f"long{i}", 900, 8, 2.0 + 8 * i) for i in range(2))]


def run(**knobs: object) -> Simulation:
    return simulate(ambush(), parse_config(knobs), UNFITTED, MODEL)


def worst_pause_s(records: list[RequestRecord]) -> float:
    return max(b.at_s - a.at_s for r in records for a, b in zip(r.events, r.events[1:], strict=False))


def long_ttft_s(records: list[RequestRecord]) -> float:
    return max(r.events[0].at_s - r.scheduled_at_s for r in records if r.id.startswith("long"))


def test_smaller_chunks_shorten_the_pause_and_lengthen_the_first_token() -> None:
    runs = [run(prefill_policy="whole"), *(run(prefill_chunk_tokens=c) for c in (512, 256, 128, 64, 32))]
    pauses = [worst_pause_s(r.records) for r in runs]
    ttfts = [long_ttft_s(r.records) for r in runs]
    assert pauses == sorted(pauses, reverse=True)
    assert ttfts == sorted(ttfts)


def test_every_arrival_has_one_record_and_completes() -> None:
    records = run().records
    assert [r.id for r in records] == [r.id for r in ambush()]
    assert {r.outcome for r in records} == {Outcome.COMPLETED}
    assert [r.output_tokens for r in records] == [200, 200, 200, 8, 8]


def test_refusals_are_recorded() -> None:
    records = run(max_running_requests=3, max_waiting_requests=0).records
    assert [r.outcome for r in records[3:]] == [Outcome.REFUSED, Outcome.REFUSED]


def test_a_broken_limit_stops_the_run_and_leaves_the_rest_unfinished() -> None:
    stopped = simulate(
        ambush(), parse_config({"prefill_policy": "whole"}), UNFITTED, MODEL, abort_pause_s=1.0
    )
    assert stopped.aborted
    assert worst_pause_s(stopped.records) > 1.0
    assert Outcome.UNFINISHED in {r.outcome for r in stopped.records}


def test_what_had_not_arrived_when_a_run_stopped_was_never_sent() -> None:
    stopped = simulate(
        ambush(), parse_config({"prefill_policy": "whole"}), UNFITTED, MODEL, abort_pause_s=1.0
    )
    late = stopped.records[-1]
    assert (late.outcome, late.sent_at_s) == (Outcome.NEVER_SENT, None)
    assert late.ended_at_s == late.scheduled_at_s


def test_pauses_of_streams_that_are_not_watched_stop_nothing() -> None:
    whole = parse_config({"prefill_policy": "whole"})
    ran = simulate(ambush(), whole, UNFITTED, MODEL, abort_pause_s=1.0, watched={"long0", "long1"})
    assert not ran.aborted
    assert {r.outcome for r in ran.records} == {Outcome.COMPLETED}


def test_the_simulation_makes_the_plans_of_a_scheduler_stepped_by_hand() -> None:
    arrivals = ambush()
    simulated = simulate(arrivals, parse_config({"prefill_chunk_tokens": 48}), UNFITTED, MODEL)
    engine = Engine(prefill_chunk_tokens=48)
    waiting = sorted(arrivals, key=lambda r: r.arrived_at_s)
    while waiting or not engine.scheduler.is_idle:
        if engine.scheduler.is_idle:
            engine.clock.advance_to(waiting[0].arrived_at_s)
        while waiting and waiting[0].arrived_at_s <= engine.clock():
            engine.submit(waiting.pop(0))
        engine.step()
    assert engine.plans == simulated.plans


def test_noise_moves_times_but_never_counts() -> None:
    factors = iter([1.0, 1.3, 0.8] * 10_000)
    noisy = simulate(ambush(), parse_config({}), UNFITTED, MODEL, noise=lambda: next(factors))
    assert [r.output_tokens for r in noisy.records] == [200, 200, 200, 8, 8]
    assert worst_pause_s(noisy.records) != pytest.approx(worst_pause_s(run().records))


def test_a_shared_prefix_is_read_once_and_the_record_says_so() -> None:
    model = replace(MODEL, checkpoints=CheckpointSizes(token_bytes=10, capacity_bytes=1 << 20))
    arrivals = [
        Request(
            id=f"r{n}",
            prompt=[*range(500), *[1000 + n] * 40],
            max_tokens=3,
            arrived_at_s=0.001 * n,
            boundaries=(500, 540),
        )
        for n in range(3)
    ]
    run = simulate(arrivals, SchedulerConfig(), UNFITTED, model)
    assert [record.cached_tokens for record in run.records] == [0, 500, 500]
    assert sum(prefill_tokens(plan) for plan in run.plans) == 540 + 2 * 40


def session(**knobs: object) -> Simulation:
    turns = [request(f"turn{n}", 100, 20, 0.0) for n in range(3)]
    waits = {"turn1": Wait("turn0", 1.5), "turn2": Wait("turn1", 0.0)}
    return simulate(
        [*turns, request("other", 300, 30, 3.0)], parse_config(knobs), UNFITTED, MODEL, waits=waits
    )


def test_a_request_that_waits_arrives_when_the_other_has_ended() -> None:
    turn0, turn1, turn2 = (r for r in session().records if r.id.startswith("turn"))
    assert turn0.scheduled_at_s == 0.0
    assert turn1.scheduled_at_s == pytest.approx(turn0.ended_at_s + 1.5)
    assert turn2.scheduled_at_s == pytest.approx(turn1.ended_at_s)
    assert {turn0.outcome, turn1.outcome, turn2.outcome} == {Outcome.COMPLETED}
    assert all(turn.events[0].at_s > turn.scheduled_at_s for turn in (turn0, turn1, turn2))


def test_a_refused_request_does_not_keep_others_waiting() -> None:
    records = {r.id: r for r in session(max_waiting_requests=0, max_running_requests=1).records}
    turn1, turn2 = records["turn1"], records["turn2"]
    assert turn1.outcome is Outcome.REFUSED  # the other one is inside
    assert (turn2.outcome, turn2.scheduled_at_s) == (Outcome.REFUSED, turn1.ended_at_s)


def test_what_still_waited_when_a_run_stopped_was_never_sent() -> None:
    streams = ambush()
    waiting = request("later", 10, 5, 0.0)
    stopped = simulate(
        [*streams, waiting], parse_config({"prefill_policy": "whole"}), UNFITTED, MODEL,
        abort_pause_s=1.0, waits={"later": Wait("long0", 0.0)},
    )  # fmt: skip
    later = next(r for r in stopped.records if r.id == "later")
    assert (later.outcome, later.sent_at_s) == (Outcome.NEVER_SENT, None)


def test_who_is_refused_comes_back_and_waits_from_the_first_time_on() -> None:
    config = parse_config({"max_running_requests": 3, "max_waiting_requests": 0})
    requests = ambush()
    refused = simulate(requests, config, UNFITTED, MODEL).records[3]
    assert refused.outcome is Outcome.REFUSED
    back = simulate(requests, config, UNFITTED, MODEL, retries={"long0": 9}).records[3]
    assert back.outcome is Outcome.COMPLETED
    assert back.scheduled_at_s == refused.scheduled_at_s
    assert back.events[0].at_s >= refused.ended_at_s + 1.0
