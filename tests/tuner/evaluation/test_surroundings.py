"""What steps and clients add to a simulated device."""

from __future__ import annotations

import itertools

import pytest

from engine.core.config import SchedulerConfig
from engine.core.cost_model import UNFITTED
from engine.core.records import ContentEvent, Outcome, RequestRecord, Tokens
from engine.core.slo import Slo
from loadtests.traffic.schedule import Schedule, ScheduledRequest
from tests.core.fakes import MODEL
from tuner.evaluation.simulated import SimulatedEvaluator
from tuner.evaluation.surroundings import Surroundings, surroundings_of


def record(events: list[ContentEvent], engine_ttft_s: float = 0.9) -> RequestRecord:
    return RequestRecord(
        id="r", scheduled_at_s=0.0, sent_at_s=0.0, planned_prompt_tokens=10, prompt_tokens=10,
        max_tokens=len(events), outcome=Outcome.COMPLETED, ended_at_s=9.0, events=events,
        output_tokens=len(events), timings={"ttft_s": engine_ttft_s},
    )  # fmt: skip


def test_a_probe_shows_how_long_requests_and_tokens_are_on_their_way() -> None:
    """The engine's clock is another one; only differences on it count."""
    late = [0.0, 0.002, 0.0, 0.001, 0.0]
    events = [ContentEvent(1.0 + n + late[n], 1, 500.0 + n) for n in range(5)]
    found = surroundings_of([1.0], [record(events, 0.98)])
    assert found.request_s == pytest.approx(0.02)
    assert found.lags_s == pytest.approx(sorted(late), abs=1e-6)


def test_one_accident_among_a_hundred_steps_is_not_drawn_again() -> None:
    found = surroundings_of([1.0] * 50 + [1.1] * 49 + [30.0], [])
    assert max(found.stalls) == 1.1
    assert len(found.stalls) == 100


def test_every_config_meets_the_same_stalls() -> None:
    around = Surroundings(stalls=(0.9, 1.0, 1.3))
    one, same, other = around.noise(1), around.noise(1), around.noise(2)
    assert one is not None
    assert same is not None
    assert other is not None
    drawn = [one() for _ in range(3000)]
    assert drawn == [same() for _ in range(3000)]
    assert drawn != [other() for _ in range(3000)]
    assert set(drawn) == {0.9, 1.0, 1.3}


def test_tokens_reach_a_client_later_and_in_order() -> None:
    around = Surroundings(request_s=0.01, lags_s=(0.0, 0.5))
    sent = Tokens([1.0 + 0.1 * n for n in range(50)])
    (seen,) = around.seen([record(list(sent))], 1)
    delays = [got.at_s - left.at_s for got, left in zip(seen.events, sent, strict=True)]
    assert min(delays) == pytest.approx(0.01)
    assert max(delays) == pytest.approx(0.51)
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(seen.events))


def test_no_token_is_seen_before_it_was_sent() -> None:
    around = Surroundings(request_s=0.01, lags_s=(-3.0,))
    sent = Tokens([1.0, 1.1])
    (seen,) = around.seen([record(list(sent))], 1)
    assert [event.at_s for event in seen.events] == [1.0, 1.1]


def test_nothing_is_added_where_nothing_is_known() -> None:
    assert Surroundings().noise(1) is None
    assert Surroundings.from_mapping(Surroundings((1.0,), 0.1, (0.2,)).to_mapping()) == Surroundings(
        (1.0,), 0.1, (0.2,)
    )


def test_a_simulated_trial_has_its_surroundings() -> None:
    requests = tuple(
        ScheduledRequest(id=f"r{n}", at_s=0.2 * n, prompt_tokens=200, max_tokens=40, prompt_seed=n)
        for n in range(4)
    )
    schedule = Schedule(
        name="s", seed=1, requests=requests, duration_s=5.0, grace_s=60.0, long_prompt_tokens=100
    )

    def worst_pause_s(around: Surroundings) -> float:
        evaluator = SimulatedEvaluator(lambda seed: schedule, UNFITTED, MODEL, Slo(0.5), around)
        summary = evaluator.evaluate(SchedulerConfig(), 1, None).summary
        assert summary is not None
        assert summary.worst_pause_s is not None
        return summary.worst_pause_s

    calm = worst_pause_s(Surroundings())
    assert worst_pause_s(Surroundings(stalls=(1.5,))) > 1.3 * calm
    assert worst_pause_s(Surroundings(lags_s=(0.0, 0.05))) != pytest.approx(calm, abs=0.01)
