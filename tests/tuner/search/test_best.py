from __future__ import annotations

from typing import Any

import pytest

from engine.core.config import SchedulerConfig
from tests.tuner.fakes import SLO_S
from tuner.reporting.findings import so_far
from tuner.search.best import best_of, improvements
from tuner.search_space import fixed_chunks
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial

OWN = 1


def trial(number: int, ttft_s: float | None, pause_s: float = 0.4, **more: Any) -> Trial:
    given = {"kind": TrialKind.SEARCH, "status": TrialStatus.DONE, "seed": OWN, "short_ttft_p95_s": 1.0}
    given |= {"counts": {"completed": 10}, "config": fixed_chunks(SchedulerConfig(), 64 + number)}
    return Trial(number=number, long_ttft_p95_s=ttft_s, worst_pause_s=pause_s, **(given | more))


BASELINE = trial(0, 2.0, 3.0, kind=TrialKind.BASELINE, config=SchedulerConfig())


def test_each_improvement_is_cheaper_than_all_before() -> None:
    trials = [BASELINE, trial(1, 5.0), trial(2, 6.0), trial(3, 4.0), trial(4, 4.0)]
    assert [one.number for one in improvements(trials, SLO_S, OWN)] == [1, 3]


@pytest.mark.parametrize(
    "cheaper",
    [
        trial(2, 3.0, 0.6),
        trial(2, 3.0, counts={"completed": 8, "refused": 2}),
        trial(2, 3.0, short_ttft_p95_s=9.0),
        trial(2, 3.0, seed=OWN + 1, kind=TrialKind.CONFIRM),
        trial(2, 3.0, status=TrialStatus.SUSPECT),
        trial(2, 3.0, status=TrialStatus.ABORTED),
        trial(2, None),
    ],
    ids=[
        "pauses",
        "refuses",
        "delays short requests",
        "another window",
        "set aside",
        "cut",
        "loses long ones",
    ],
)
def test_what_does_not_keep_the_slo_is_not_the_best(cheaper: Trial) -> None:
    trials = [BASELINE, trial(1, 5.0), cheaper]
    assert best_of(trials, SLO_S, OWN) is trials[1]
    assert (so_far(SLO_S, OWN, trials)["best_so_far"] or {})["config"] == trials[1].config.to_mapping()


def test_nothing_is_the_best_of_nothing() -> None:
    assert best_of([], SLO_S, OWN) is None
    assert best_of([BASELINE], SLO_S, OWN) is None


def test_what_has_ended_is_counted_whatever_its_end() -> None:
    ends = [TrialStatus.DONE, TrialStatus.ABORTED, TrialStatus.CRASHED]
    others = [TrialStatus.RUNNING, TrialStatus.LOST, TrialStatus.INVALID, TrialStatus.SUSPECT]
    trials = [trial(n, 5.0, status=status) for n, status in enumerate([*ends, *others])]
    assert so_far(SLO_S, OWN, trials)["live_trials"] == len(ends)
