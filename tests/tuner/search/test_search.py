"""What the search does with its runs, over a server in arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.config import PrefillPolicy, SchedulerConfig, parse_config
from tests.tuner.fakes import SLO_S, FakeClock, FakeServer, StudyBench
from tuner.errors import Interrupted
from tuner.store.models import TrialKind, TrialStatus


@pytest.fixture
def bench(tmp_path: Path) -> StudyBench:
    return StudyBench(tmp_path)


def test_a_rule_of_thumb_near_the_border_is_not_given_up_for_something_slower(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock, token_s=0.0034), FakeServer(FakeClock(), token_s=0.0034))
    rule, winner = result.rule_of_thumb, result.winner
    assert rule is not None
    assert winner is not None
    assert rule.worst_pause_s is not None
    assert 0.9 * SLO_S < rule.worst_pause_s <= SLO_S
    assert (winner.long_ttft_p95_s or 9e9) <= (rule.long_ttft_p95_s or 0.0)


def test_knobs_that_do_nothing_are_left_alone(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock), FakeServer(FakeClock()))
    assert set(result.idle_knobs) == {"solo_chunk_tokens", "prefill_order", "max_running_requests"}
    searched = [t.config for t in bench.studies.trials(bench.study) if t.kind is TrialKind.SEARCH]
    usual = SchedulerConfig().to_mapping()
    assert searched
    assert all(config[knob] == usual[knob] for config in searched for knob in result.idle_knobs)


def test_a_right_simulator_needs_few_live_runs_for_the_best(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock), FakeServer(FakeClock()))
    assert result.winner is not None
    assert 0.85 * SLO_S < (result.winner.worst_pause_s or 0.0) <= SLO_S
    assert result.live_trials <= 14


def test_what_short_requests_would_pay_for_is_not_even_tried(bench: StudyBench) -> None:
    def short_ttft(config: SchedulerConfig) -> float:
        return (
            3.0 if config.prefill_policy is PrefillPolicy.FIXED and config.prefill_chunk_tokens > 150 else 0.2
        )

    server = FakeServer(bench.clock, short_ttft=short_ttft)
    result = bench.run(server, FakeServer(FakeClock(), short_ttft=short_ttft))
    assert result.winner is not None
    assert short_ttft(result.winner.config) < 1.0
    trials = bench.studies.trials(bench.study)
    tried = {parse_config(t.config) for t in trials if t.kind in (TrialKind.SEARCH, TrialKind.CONFIRM)}
    tried.discard(SchedulerConfig())  # what the server has is run in any case
    assert tried
    assert all(short_ttft(config) < 1.0 for config in tried)


def test_what_short_requests_really_pay_counts_on_fresh_traffic_too(bench: StudyBench) -> None:
    """The simulator knows nothing of it."""

    def short_ttft(config: SchedulerConfig) -> float:
        return 3.0 if 200 <= config.prefill_chunk_tokens <= 230 else 0.2

    result = bench.run(FakeServer(bench.clock, short_ttft=short_ttft), FakeServer(FakeClock()))
    assert result.winner is not None
    assert short_ttft(result.winner.config) < 1.0


def test_a_window_that_is_hard_on_everybody_rules_nobody_out(bench: StudyBench) -> None:
    def slow_there(seed: int) -> float:
        return 0.2 if seed == 1 else 2.0

    server = FakeServer(bench.clock, short_by_window=slow_there)
    result = bench.run(server, FakeServer(FakeClock(), short_by_window=slow_there))
    assert result.winner is not None


def test_what_the_server_has_is_run_whether_or_not_the_search_could_pick_it(tmp_path: Path) -> None:
    base = SchedulerConfig(prefill_chunk_tokens=220, max_running_requests=32)
    bench = StudyBench(tmp_path, base=base)
    result = bench.run(FakeServer(bench.clock), FakeServer(FakeClock()))
    assert base in {parse_config(trial.config) for trial in bench.studies.trials(bench.study)}
    assert result.keep_current


def test_a_server_that_needs_no_chunking_is_left_alone(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    result = bench.run(FakeServer(bench.clock, token_s=0.0003), FakeServer(FakeClock(), token_s=0.0003))
    assert result.keep_current


def test_no_more_is_spent_than_there_is(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path, budget_s=46.0)
    result = bench.run(FakeServer(bench.clock), FakeServer(FakeClock()))
    assert bench.clock.now_s <= 1.05 * 46.0
    assert result.out_of_time


def test_a_claim_stands_on_fresh_runs_alone(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock))
    assert result.claim is not None
    assert result.winner is not None
    assert result.claim.num_runs == result.winner.replicates
    assert result.claim.longest_pause_s == result.winner.worst_pause_s
    assert result.claim.num_streams == result.claim.num_runs


def test_nothing_is_claimed_when_nothing_keeps_the_slo(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock, floor_s=0.6))
    assert result.claim is None
    assert result.bound is not None


def test_configs_that_the_client_spoils_count_and_are_not_asked_for_again(bench: StudyBench) -> None:
    """What promises most cannot be measured here: more than the planned trials would not help."""
    server = FakeServer(bench.clock, spoils=lambda config: config.prefill_policy is PrefillPolicy.PACED)
    result = bench.run(server, FakeServer(FakeClock()))
    searched = [t for t in bench.studies.trials(bench.study) if t.kind is TrialKind.SEARCH]
    asked = [parse_config(t.config) for t in searched if t.attempt == 0]
    assert len(asked) == len(set(asked)) <= 6
    assert {t.status for t in searched} >= {TrialStatus.INVALID, TrialStatus.DONE}
    assert result.winner is not None


def test_a_run_that_was_lost_with_its_process_is_made_again(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    with pytest.raises(Interrupted):
        bench.run(FakeServer(bench.clock, interrupt_at=6), FakeServer(FakeClock()))
    lost = bench.studies.trials(bench.study)[-1]
    assert (lost.kind, lost.status) == (TrialKind.SEARCH, TrialStatus.LOST)
    StudyBench(tmp_path).run(FakeServer(bench.clock), FakeServer(FakeClock()))
    again = [t for t in bench.studies.trials(bench.study) if t.config == lost.config]
    assert TrialStatus.DONE in {t.status for t in again}
