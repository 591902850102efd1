"""What is made of a machine that has changed, and of repeats that say nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.config import SchedulerConfig, parse_config
from tests.tuner.fakes import SLO_S, FakeServer, StudyBench
from tuner.announce import Silence
from tuner.runner import Runner
from tuner.search.conclusion import Result
from tuner.search.control import DriftControl
from tuner.search_space import fixed_chunks
from tuner.store.models import TrialKind, TrialRow, TrialStatus


def study_of_a_machine_that_slows_down(folder: Path) -> tuple[Result, list[TrialRow]]:
    bench = StudyBench(folder, num_trials=10)
    server = FakeServer(bench.clock)
    server.slow_after(9, 1.6)
    return bench.run(server), list(bench.studies.trials(bench.study))


def test_a_machine_that_has_become_slower_is_noticed(tmp_path: Path) -> None:
    result, trials = study_of_a_machine_that_slows_down(tmp_path)
    assert [t for t in trials if t.kind is TrialKind.CONTROL]
    assert [t for t in trials if t.status is TrialStatus.SUSPECT and "times as long" in t.problems]
    assert result.winner is not None
    assert (result.winner.worst_pause_s or 9.0) <= SLO_S
    searched = {parse_config(t.config) for t in trials if t.kind is TrialKind.SEARCH}
    assert len(searched) == 10


def test_what_others_are_judged_by_is_measured_again_on_a_changed_machine(tmp_path: Path) -> None:
    result, trials = study_of_a_machine_that_slows_down(tmp_path)
    old = [t for t in trials if t.number < 9 and t.status is TrialStatus.DONE]
    assert old == []
    baselines = [t for t in trials if t.kind is TrialKind.BASELINE]
    assert [t.status for t in baselines] == [TrialStatus.SUSPECT, TrialStatus.DONE]
    assert baselines[1].worst_pause_s == pytest.approx(1.6 * (baselines[0].worst_pause_s or 0.0))
    assert result.baseline is not None
    assert result.baseline.worst_pause_s == baselines[1].worst_pause_s
    by_hand = [t for t in trials if t.kind is TrialKind.RULE and t.status is TrialStatus.DONE]
    assert result.rule_of_thumb is not None
    assert [t.worst_pause_s for t in by_hand] == [result.rule_of_thumb.worst_pause_s]


def test_repeats_that_the_client_spoils_are_no_drift(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    good = FakeServer(bench.clock)
    runner = Runner(bench.studies, bench.study, good, Silence())
    before = runner.run(TrialKind.SEARCH, fixed_chunks(SchedulerConfig(), 128), 1, None)
    lagging = FakeServer(bench.clock, token_s=0.004, spoil=100)
    runner = Runner(bench.studies, bench.study, lagging, Silence())
    DriftControl(runner, Silence()).check(before, 0.04, 9.0, [])
    statuses = [t.status for t in bench.studies.trials(bench.study)]
    assert statuses == [TrialStatus.DONE, *[TrialStatus.INVALID] * 3]


def test_a_slow_repeat_that_cannot_be_checked_is_no_drift(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    runner = Runner(bench.studies, bench.study, FakeServer(bench.clock), Silence())
    before = runner.run(TrialKind.SEARCH, fixed_chunks(SchedulerConfig(), 128), 1, None)
    slow = FakeServer(bench.clock, token_s=0.004, spoils=lambda config: len(slow.seeds) > 1)
    runner = Runner(bench.studies, bench.study, slow, Silence())
    DriftControl(runner, Silence()).check(before, 0.04, 9.0, [])
    statuses = [t.status for t in bench.studies.trials(bench.study)]
    assert statuses == [*[TrialStatus.DONE] * 2, *[TrialStatus.INVALID] * 3]


@pytest.mark.parametrize(("slowness", "still_holds"), [(1.6, True), (0.6, False)])
def test_what_was_stopped_early_holds_on_a_slower_machine_only(
    tmp_path: Path, slowness: float, still_holds: bool
) -> None:
    bench = StudyBench(tmp_path, num_trials=10)
    server = FakeServer(bench.clock)
    server.slow_after(10, slowness)
    bench.run(server)
    first_rule = bench.studies.trials(bench.study)[1]
    assert first_rule.config["prefill_chunk_tokens"] == 512
    assert first_rule.status is (TrialStatus.ABORTED if still_holds else TrialStatus.SUSPECT)
