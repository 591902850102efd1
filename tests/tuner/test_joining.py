"""Several tuners on one study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from tests.tuner.fakes import FakeServer, StudyBench
from tuner.errors import EngineError, StoreError, StudyError
from tuner.evaluation.evaluators import Measurement
from tuner.evaluation.sizing import Capacity
from tuner.joining import check_alike, claim_engine, is_searching, leadership, study_to_join
from tuner.paths import locate_database
from tuner.preflight import Wanted
from tuner.store.claims import claims_of
from tuner.store.database import open_database
from tuner.store.models import TrialKind, TrialStatus

CAPACITY = Capacity(
    costs=CostModel(0.01, 0.001, 0.0, 0.01, 0.0, 0.0), prefill_error=0.1, decode_error=0.1, num_steps=40,
    stall_floor_s=0.02, context_tokens=8192,
)  # fmt: skip


class Meanwhile(FakeServer):
    """A server during one of whose runs something else happens."""

    def __init__(self, bench: StudyBench, run: int, event: Callable[[], None]) -> None:
        super().__init__(bench.clock)
        self._run = run
        self._event = event

    def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        if len(self.seeds) + 1 == self._run:
            self._event()
        return super().evaluate(config, seed, abort_pause_s)


def first_search_run(directory: Path) -> int:
    """Which of a study's runs is the first of its live search."""
    bench = StudyBench(directory / "alone")
    bench.run(FakeServer(bench.clock))
    kinds = [trial.kind for trial in bench.studies.trials(bench.study)]
    return kinds.index(TrialKind.SEARCH) + 1


def test_a_helper_makes_trials_of_the_same_search(tmp_path: Path) -> None:
    run = first_search_run(tmp_path)
    leader, helper = StudyBench(tmp_path, shared=True), StudyBench(tmp_path, shared=True)
    assert not is_searching(helper.studies, helper.study)
    helped = FakeServer(helper.clock)

    def help_once() -> None:
        assert is_searching(helper.studies, helper.study)
        helper.help(helped)

    result = leader.run(Meanwhile(leader, run, help_once))
    assert result.winner is not None
    trials = leader.studies.trials(leader.study)
    searched = [trial for trial in trials if trial.kind is TrialKind.SEARCH]
    assert len(searched) == 6
    assert len(helped.configs) == 5
    assert len({str(trial.config) for trial in searched}) == 6
    assert {trial.status for trial in trials} <= {TrialStatus.DONE, TrialStatus.ABORTED}
    assert leader.num_told >= 6


def test_a_helper_that_dies_costs_its_running_trial(tmp_path: Path) -> None:
    run = first_search_run(tmp_path)
    leader, helper = StudyBench(tmp_path, shared=True), StudyBench(tmp_path, shared=True)

    def die_at_work() -> None:
        helper.studies.start_trial(helper.study, TrialKind.SEARCH, SchedulerConfig(), 1)
        helper.claims.close()

    result = leader.run(Meanwhile(leader, run, die_at_work))
    assert result.winner is not None
    statuses = [trial.status for trial in leader.studies.trials(leader.study)]
    assert statuses.count(TrialStatus.LOST) == 1
    assert TrialStatus.RUNNING not in statuses


def wanted(**changes: object) -> Wanted:
    about = Wanted(
        slo_pause_s=0.5, budget_s=60.0, profile="p", replay=None, engine="http://b", model=None,
        backend="mlx", seed=1, name="bench",
    )  # fmt: skip
    return replace(about, **changes)  # type: ignore[arg-type]


def test_only_a_study_that_is_worked_on_is_joined_and_with_an_engine_of_ones_own(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    assert bench.study.name == "bench"
    assert study_to_join(bench.studies, wanted(), bench.location).name == "bench"
    for other in (wanted(name=None), wanted(name="banana"), wanted(engine=None)):
        with pytest.raises(StoreError, match=r"another tuner is writing.*--study NAME"):
            study_to_join(bench.studies, other, bench.location)
    bench.studies.interrupted(bench.study)
    with pytest.raises(StoreError):
        study_to_join(bench.studies, wanted(), bench.location)


def test_an_engine_is_tuned_by_one(tmp_path: Path) -> None:
    location = locate_database(str(tmp_path / "evenflow.db"))
    engine = open_database(location, create=True)
    with claims_of(location, engine) as first, claims_of(location, engine) as second:
        claim_engine(first, "http://a:8080")
        claim_engine(second, "http://b:8080")
        with pytest.raises(EngineError, match="another tuner works on http://a:8080"):
            claim_engine(second, "http://a:8080")


def test_engines_of_different_speed_are_no_part_of_one_study(tmp_path: Path) -> None:
    study = StudyBench(tmp_path).study
    check_alike(study, CAPACITY, replace(CAPACITY, stall_floor_s=0.025), "http://b")
    slow = replace(CAPACITY, costs=CostModel(0.01, 0.002, 0.0, 0.01, 0.0, 0.0))
    with pytest.raises(StudyError, match=r"http://b takes 2 times as long to read a prompt"):
        check_alike(study, CAPACITY, slow, "http://b")
    with pytest.raises(StudyError, match=r"http://b takes 0.5 times as long to write a token"):
        check_alike(study, CAPACITY, replace(CAPACITY, stall_floor_s=0.01), "http://b")


def test_a_file_has_one_leader_and_a_server_one_for_each_study() -> None:
    file, server = locate_database("evenflow.db"), locate_database("postgresql://host/db")
    assert leadership(file, None) == leadership(file, "a") == leadership(file, "b")
    assert leadership(server, "a") != leadership(server, "b")
    assert leadership(server, None) is None
