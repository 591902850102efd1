from __future__ import annotations

import signal

import httpx
import pytest

from engine.core.config import SchedulerConfig
from tests.tuner.fake_engine import FakeEngine
from tests.tuner.fakes import FakeClock
from tuner.apply import Applied, Watch
from tuner.errors import EngineError, Interrupted, StaleConfigError
from tuner.verdict import Decision, Evidence

CONFIG = SchedulerConfig(prefill_chunk_tokens=128)
GOOD, BAD = 0.1, 0.9


def watch(engine: FakeEngine, watch_s: float = 60.0) -> Applied:
    clock = FakeClock()

    def wait(seconds: float) -> None:
        clock.now_s += seconds

    return Watch(engine.client(), 0.5, clock, wait).apply(CONFIG, watch_s, "test")


def test_two_bad_streams_take_the_config_back() -> None:
    engine = FakeEngine()
    before = engine.config
    engine.upcoming = [(GOOD, True), (BAD, True), (BAD, True)]
    applied = watch(engine)
    assert applied.verdict == "taken back"
    assert applied.evidence.num_bad == 2
    assert engine.config == before
    assert engine.generation == 3


def test_what_nobody_had_kept_is_taken_back_to_as_well() -> None:
    engine = FakeEngine()
    engine.meddle()
    before = engine.config
    engine.upcoming = [(BAD, True), (BAD, True)]
    assert watch(engine).now.config == before
    assert engine.config == before


def test_a_config_that_was_in_force_already_is_not_what_it_is_taken_back_to() -> None:
    engine = FakeEngine()
    kept = engine.config
    engine.client().put_config(CONFIG, 1, "a watch that was interrupted")
    engine.upcoming = [(BAD, True), (BAD, True)]
    assert watch(engine).now.config == kept


def test_clean_streams_keep_the_config() -> None:
    engine = FakeEngine()
    engine.upcoming = [(GOOD, True)] * 24
    applied = watch(engine)
    assert applied.verdict == "kept"
    assert applied.evidence.num_streams == 24
    assert engine.config == CONFIG
    assert engine.kept == [1, 2]
    assert engine.leased == []


def test_a_config_is_on_loan_until_it_is_judged() -> None:
    engine = FakeEngine()
    loans: list[list[int]] = []
    clock = FakeClock()

    def wait(seconds: float) -> None:
        clock.now_s += seconds
        loans.append([*engine.leased])

    Watch(engine.client(), 0.5, clock, wait).apply(CONFIG, 60.0, "test")
    assert loans == [[2]] * 120
    assert engine.renewed == [2] * 3
    assert engine.leased == []


def test_a_watch_that_was_held_up_for_too_long_has_lost_the_config() -> None:
    engine = FakeEngine()
    before = engine.config

    def oversleep(_: float) -> None:
        engine.end_lease()

    applied = Watch(engine.client(), 0.5, FakeClock(), oversleep).apply(CONFIG, 60.0, "test")
    assert applied.verdict == "overtaken"
    assert (engine.config, engine.kept) == (before, [1])


def test_what_another_tuner_has_on_loan_is_not_what_it_is_taken_back_to() -> None:
    engine = FakeEngine()
    own = engine.config
    engine.client().put_config(SchedulerConfig(prefill_chunk_tokens=64), 1, "a trial", lease_s=120.0)
    engine.upcoming = [(BAD, True), (BAD, True)]
    assert watch(engine).now.config == own
    assert engine.config == own


def test_no_streams_are_no_data() -> None:
    engine = FakeEngine()
    assert watch(engine).verdict == "no data"
    assert engine.config == CONFIG


def test_streams_that_saw_another_config_prove_nothing() -> None:
    engine = FakeEngine()
    engine.upcoming = [(BAD, False)] * 5
    assert watch(engine).evidence.num_streams == 0


def test_answers_of_one_token_have_no_pause_to_judge() -> None:
    engine = FakeEngine()
    engine.upcoming = [(None, True)] * 5
    assert watch(engine).verdict == "no data"


def test_without_a_watch_the_config_is_kept_at_once() -> None:
    engine = FakeEngine()
    assert watch(engine, watch_s=0.0).verdict == "applied"
    assert engine.kept == [1, 2]


def interrupt(_: float) -> None:
    raise Interrupted(signal.SIGINT)


def test_a_watch_that_is_interrupted_gives_the_config_up() -> None:
    engine = FakeEngine()
    before = engine.config
    with pytest.raises(Interrupted) as raised:
        Watch(engine.client(), 0.5, FakeClock(), interrupt).apply(CONFIG, 60.0, "test")
    assert raised.value.hint == "generation 2 was not judged; http://engine is back at the config before it"
    assert engine.config == before


def test_a_server_that_is_lost_during_the_watch_goes_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    client = engine.client()

    def die(_: float) -> None:
        monkeypatch.setattr(engine, "handle_request", lambda request: httpx.Response(500))

    with pytest.raises(EngineError, match=r"generation 2 was not judged.*goes back by itself, within 120 s"):
        Watch(client, 0.5, FakeClock(), die).apply(CONFIG, 60.0, "test")
    assert engine.leased == [2]


def test_an_interrupted_watch_of_a_server_that_is_lost_says_that_it_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine()
    client = engine.client()

    def die(seconds: float) -> None:
        monkeypatch.setattr(engine, "handle_request", lambda request: httpx.Response(500))
        interrupt(seconds)

    with pytest.raises(Interrupted) as raised:
        Watch(client, 0.5, FakeClock(), die).apply(CONFIG, 60.0, "test")
    assert "goes back to the config before it by itself, within 120 s" in raised.value.hint


def test_somebody_faster_is_not_overwritten() -> None:
    engine = FakeEngine(meddle_at=4)
    with pytest.raises(StaleConfigError, match=r"somebody \(lunch\)"):
        watch(engine)
    assert engine.config.max_running_requests == 99


def test_somebody_elses_change_ends_the_watch() -> None:
    engine = FakeEngine(meddle_at=6)
    applied = watch(engine)
    assert applied.verdict == "overtaken"
    assert engine.config.max_running_requests == 99


def test_the_sequential_test_needs_24_clean_streams() -> None:
    evidence = Evidence()
    for _ in range(23):
        evidence = evidence.add(GOOD, 0.5)
    assert evidence.decision is Decision.UNDECIDED
    assert evidence.add(GOOD, 0.5).decision is Decision.KEEP


def test_a_server_without_our_routes_is_not_ours() -> None:
    with pytest.raises(EngineError, match="not an Evenflow engine"):
        FakeEngine().client().check()


@pytest.mark.parametrize(("num_good", "decision"), [(17, Decision.TAKE_BACK), (18, Decision.UNDECIDED)])
def test_two_bad_streams_among_the_first_nineteen_take_a_config_back(
    num_good: int, decision: Decision
) -> None:
    evidence = Evidence()
    for pause_s in [GOOD] * num_good + [BAD] * 2:
        evidence = evidence.add(pause_s, 0.5)
    assert evidence.decision is decision
