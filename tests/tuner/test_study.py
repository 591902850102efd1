from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.config import PrefillPolicy, SchedulerConfig
from tests.tuner.fakes import SLO_S, FakeClock, FakeServer, StudyBench
from tuner.errors import Interrupted, TunerError
from tuner.store.models import StudyStatus, TrialKind, TrialStatus


@pytest.fixture
def bench(tmp_path: Path) -> StudyBench:
    return StudyBench(tmp_path)


def test_the_winner_keeps_the_slo_on_traffic_the_search_has_not_seen(bench: StudyBench) -> None:
    server = FakeServer(bench.clock)
    result = bench.run(server)
    assert result.winner is not None
    assert result.winner.replicates == 3
    assert result.winner.worst_pause_s is not None
    assert result.winner.worst_pause_s <= SLO_S
    confirmed_on = set(server.seeds[-3:])
    assert len(confirmed_on) == 3
    assert 1 not in confirmed_on


def test_the_winner_is_at_least_as_good_as_the_rule_of_thumb(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock))
    assert result.rule_of_thumb is not None
    assert result.winner is not None
    assert result.rule_of_thumb.config.prefill_chunk_tokens == 128
    assert result.winner.long_ttft_p95_s is not None
    assert result.rule_of_thumb.long_ttft_p95_s is not None
    assert result.winner.long_ttft_p95_s <= result.rule_of_thumb.long_ttft_p95_s


def test_the_printed_estimate_leaves_out_the_run_that_selected_the_winner(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock, growth=lambda seed: 0.8 if seed == 1 else 1.0))
    assert result.winner is not None
    runs = [t for t in bench.studies.trials(bench.study) if t.kind is TrialKind.CONFIRM]
    winners = [t for t in runs if t.config == result.winner.config.to_mapping()]
    assert result.winner.worst_pause_s == max(t.worst_pause_s or 0 for t in winners)


def test_a_winner_that_fails_on_fresh_traffic_is_demoted(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock, growth=lambda seed: 1.0 if seed == 1 else 1.9))
    confirmed = [t for t in bench.studies.trials(bench.study) if t.kind is TrialKind.CONFIRM]
    assert confirmed[0].status is TrialStatus.ABORTED
    assert result.winner is not None
    assert result.winner.config.to_mapping() != confirmed[0].config
    assert (result.winner.worst_pause_s or 9.0) <= SLO_S


def test_a_narrow_winner_is_better_than_none(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock, floor_s=0.42, growth=lambda seed: 1.0 if seed == 1 else 1.07))
    assert result.winner is not None
    assert 0.95 * SLO_S < (result.winner.worst_pause_s or 0.0) <= SLO_S


def test_a_narrow_candidate_leaves_time_for_a_safe_one(tmp_path: Path) -> None:
    """224 tokens pause 0.47 s, and 0.49 s in some windows; a little less is safe and costs little."""

    def growth(seed: int) -> float:
        return 1.0 if seed % 2 else 1.04

    bench = StudyBench(tmp_path, budget_s=130.0, base=with_chunks(224))
    result = bench.run(FakeServer(bench.clock, growth), FakeServer(FakeClock()))
    assert result.winner is not None
    assert result.claim is not None
    assert not result.claim.narrow
    assert (result.winner.worst_pause_s or 9.0) < 0.97 * SLO_S


def test_nothing_keeps_the_slo(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock, floor_s=0.6))
    assert result.winner is None
    assert not result.out_of_time
    assert (result.smallest.worst_pause_s or 0.0) > SLO_S


def test_no_verdict_without_a_search(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path, budget_s=60.0)
    bench.run(FakeServer(bench.clock, floor_s=0.6))
    kinds = [trial.kind for trial in bench.studies.trials(bench.study)]
    assert kinds.count(TrialKind.SEARCH) >= 3


def test_chunking_off_wins_when_it_keeps_the_slo(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock, token_s=0.0001))
    assert result.winner is not None
    # What the server has does the very same on this traffic: 1,024 tokens are the whole prompt.
    assert result.keep_current


def test_sizes_that_do_not_cut_the_prompt_are_not_tried_by_hand(bench: StudyBench) -> None:
    bench.run(FakeServer(bench.clock))
    rules = [t for t in bench.studies.trials(bench.study) if t.kind is TrialKind.RULE]
    assert [t.config["prefill_chunk_tokens"] for t in rules] == [512, 256, 128]


def test_a_spoiled_run_is_made_again_and_not_scored(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock, spoil=2))
    trials = bench.studies.trials(bench.study)
    assert [t.status for t in trials[:3]] == [TrialStatus.INVALID, TrialStatus.INVALID, TrialStatus.DONE]
    assert [t.attempt for t in trials[:3]] == [0, 1, 2]
    assert result.winner is not None


def test_a_client_that_spoils_everything_ends_the_study(bench: StudyBench) -> None:
    with pytest.raises(TunerError, match=r"load client.*dispatch lag; close other programs"):
        bench.run(FakeServer(bench.clock, spoil=1000))


def test_a_config_that_cannot_be_measured_is_tried_three_times_and_then_said(bench: StudyBench) -> None:
    result = bench.run(FakeServer(bench.clock, spoils=lambda config: config.prefill_chunk_tokens == 512))
    runs = [t for t in bench.studies.trials(bench.study) if t.config["prefill_chunk_tokens"] == 512]
    assert [t.status for t in runs] == [TrialStatus.INVALID] * 3
    assert result.unmeasured == ("dispatch lag; close other programs",)
    assert result.rule_of_thumb is not None
    assert result.rule_of_thumb.config.prefill_chunk_tokens < 512
    assert result.winner is not None


def test_a_crashing_region_does_not_end_the_study(bench: StudyBench) -> None:
    server = FakeServer(bench.clock, crash=lambda config: config.prefill_policy is PrefillPolicy.PACED)
    result = bench.run(server)
    assert result.winner is not None
    assert result.winner.config.prefill_policy is PrefillPolicy.FIXED


def test_the_budget_ends_the_search_in_time_to_confirm(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path, num_trials=1000, budget_s=300.0)
    result = bench.run(FakeServer(bench.clock))
    assert result.winner is not None
    assert bench.clock.now_s <= 300.0


@pytest.mark.parametrize("run", [1, 2, 4, 6, 8, 11, 13])
def test_an_interrupted_study_goes_on_where_it_was(tmp_path: Path, run: int) -> None:
    bench = StudyBench(tmp_path)
    with pytest.raises(Interrupted):
        bench.run(FakeServer(bench.clock, interrupt_at=run))
    before = [t.status for t in bench.studies.trials(bench.study)]
    assert before[-1] is TrialStatus.LOST
    second = FakeServer(bench.clock)
    result = StudyBench(tmp_path).run(second)
    trials = bench.studies.trials(bench.study)
    assert result.winner is not None
    assert sum(t.kind is TrialKind.BASELINE and t.status is TrialStatus.DONE for t in trials) == 1
    assert sum(t.kind is TrialKind.SEARCH and t.status is not TrialStatus.LOST for t in trials) == 6
    assert len(second.seeds) == len(trials) - run


def test_a_killed_process_leaves_a_trial_that_is_settled(bench: StudyBench) -> None:
    study = bench.study
    bench.studies.start_trial(study, TrialKind.SEARCH, SchedulerConfig(), 1)
    assert bench.studies.settle(study) == 1
    assert bench.studies.trials(study)[0].status is TrialStatus.LOST


def test_a_finished_study_is_added_to_on_traffic_still_unseen(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    first = FakeServer(bench.clock)
    bench.run(first)
    bench.studies.update(bench.study, status=StudyStatus.FINISHED, round=1)
    second = FakeServer(bench.clock)
    result = StudyBench(tmp_path).run(second)
    assert result.winner is not None
    assert not set(second.seeds[-3:]) & set(first.seeds)


def test_a_simulated_search_proposes_live_trials(bench: StudyBench) -> None:
    simulator = FakeServer(FakeClock())
    result = bench.run(FakeServer(bench.clock), simulator)
    assert result.simulated_trials > 20
    assert result.simulator_error_pause == pytest.approx(0.0)
    whole = [row for row in bench.studies.trials(bench.study) if row.status is TrialStatus.DONE]
    assert result.simulator_error_runs == len(whole)
    assert bench.studies.num_predictions(bench.study) == result.simulated_trials
    assert result.winner is not None


def test_a_wrong_simulator_does_not_pass_a_config_that_breaks_the_slo(bench: StudyBench) -> None:
    flattering = FakeServer(FakeClock(), growth=lambda seed: 0.5)
    result = bench.run(FakeServer(bench.clock), flattering)
    assert result.winner is not None
    assert (result.winner.worst_pause_s or 9.0) <= SLO_S
    assert result.simulator_error_pause == pytest.approx(0.5)


def test_a_stall_that_does_not_happen_again_is_not_the_configs_fault(bench: StudyBench) -> None:
    def stalls_once(seed: int) -> float:
        return 4.0 if server.configs.count(server.configs[-1]) == 1 and keeps(server.configs[-1]) else 1.0

    def keeps(config: SchedulerConfig) -> bool:
        return config.prefill_policy is PrefillPolicy.FIXED and config.prefill_chunk_tokens == 128

    server = FakeServer(bench.clock, growth=stalls_once)
    result = bench.run(server, FakeServer(bench.clock))
    assert result.rule_of_thumb is not None
    assert keeps(result.rule_of_thumb.config)
    set_aside = [t for t in bench.studies.trials(bench.study) if t.status is TrialStatus.SUSPECT]
    assert len(set_aside) == 1
    assert "simulated" in set_aside[0].problems


def test_a_stall_that_happens_again_counts(bench: StudyBench) -> None:
    server = FakeServer(bench.clock, growth=lambda seed: 2.0)
    result = bench.run(server, FakeServer(FakeClock()))
    suspects = [t for t in bench.studies.trials(bench.study) if t.status is TrialStatus.SUSPECT]
    assert suspects
    assert result.winner is not None
    assert (result.winner.worst_pause_s or 9.0) <= SLO_S


def test_every_request_of_a_trial_is_kept(bench: StudyBench) -> None:
    bench.run(FakeServer(bench.clock))
    trial = bench.studies.trials(bench.study)[0]
    requests = bench.studies.requests(trial)
    assert {r.request_id for r in requests} == {"stream", "long"}
    stream = next(r for r in requests if r.request_id == "stream")
    assert stream.gaps_over_slo == 1
    assert stream.worst_pause_s == trial.worst_pause_s


def with_chunks(chunk_tokens: int) -> SchedulerConfig:
    return SchedulerConfig(prefill_chunk_tokens=chunk_tokens)


def test_what_one_has_is_kept_when_nothing_gains_on_it_beyond_noise(tmp_path: Path) -> None:
    """Runs of one config differ by 6 % here, and chunks of 150 tokens are 4 % slower than the best."""
    bench = StudyBench(tmp_path, base=with_chunks(150))
    server = FakeServer(bench.clock, jitter=lambda run: (1.0, 1.06, 0.94)[run % 3])
    result = bench.run(server, FakeServer(FakeClock()))
    assert result.winner is not None
    assert result.winner.config == with_chunks(150)
    assert result.keep_current
    assert result.claim is not None
    assert result.claim.num_runs >= 3


def test_what_one_has_is_given_up_for_a_gain_beyond_noise(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path, base=with_chunks(60))
    result = bench.run(FakeServer(bench.clock))
    assert result.winner is not None
    assert not result.keep_current


def test_what_one_has_is_given_up_when_it_fails_on_fresh_traffic(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path, base=with_chunks(230))
    result = bench.run(FakeServer(bench.clock, growth=lambda seed: 1.0 if seed == 1 else 1.08))
    assert result.winner is not None
    assert not result.keep_current


def test_the_run_that_selected_a_config_is_no_evidence_that_it_is_safe(bench: StudyBench) -> None:
    bench.run(FakeServer(bench.clock), FakeServer(FakeClock()))
    knowledge = bench.knowledge(FakeServer(bench.clock))
    trials = [t for t in knowledge.settled() if t.is_complete]
    confirmed = {t.config for t in trials if t.kind is TrialKind.CONFIRM}
    searched = [t.config for t in trials if t.kind is TrialKind.SEARCH]
    assert searched
    for config in searched:
        everything, rest = knowledge.race().of(config), knowledge.race(without=config).of(config)
        assert everything is not None
        assert (rest is not None) == (config in confirmed)
        assert (rest.num_runs if rest else 0) == everything.num_runs - searched.count(config)
