from __future__ import annotations

from engine.core.config import SchedulerConfig
from tuner.objective import PENALTY_S, score
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial


def trial(status: TrialStatus, pause_s: float, counts: dict[str, int]) -> Trial:
    return Trial(
        number=0,
        kind=TrialKind.SEARCH,
        status=status,
        config=SchedulerConfig(),
        seed=1,
        worst_pause_s=pause_s,
        long_ttft_p95_s=2.0,
        counts=counts,
    )


def test_a_run_that_lost_more_than_the_baseline_is_not_feasible() -> None:
    lossy = score(trial(TrialStatus.DONE, 0.3, {"completed": 8, "refused": 2}), 0.5, 0.1)
    assert lossy.lost > 0
    assert not lossy.feasible


def test_what_a_stopped_run_never_sent_is_not_held_against_it_but_its_pause_is() -> None:
    stopped = score(trial(TrialStatus.ABORTED, 0.6, {"completed": 1, "never_sent": 9}), 0.5, 0.0)
    assert stopped.lost == 0.0
    assert stopped.pause > 0
    assert stopped.long_ttft_s == PENALTY_S
