from __future__ import annotations

import pytest

from engine.core.config import SchedulerConfig
from tuner.search.objective import CRASHED, PENALTY_S, Allowed, lost_rate, score
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial


def make_trial(worst_pause_s: float, status: TrialStatus = TrialStatus.DONE, **values: object) -> Trial:
    fields = {"long_ttft_p95_s": 3.0, "counts": {"completed": 9, "refused": 1}, **values}
    return Trial(
        number=0,
        kind=TrialKind.SEARCH,
        status=status,
        config=SchedulerConfig(),
        seed=1,
        worst_pause_s=worst_pause_s,
        **fields,  # type: ignore[arg-type]
    )


def test_a_pause_beyond_the_slo_is_not_feasible() -> None:
    assert score(make_trial(0.49), 0.5, Allowed(0.1)).feasible
    assert not score(make_trial(0.51), 0.5, Allowed(0.1)).feasible


def test_a_short_pause_is_not_bought_from_short_requests() -> None:
    baseline = make_trial(2.0, short_ttft_p95_s=1.0)
    allowed = Allowed.by(baseline, None, 0.5)
    assert score(make_trial(0.4, short_ttft_p95_s=1.4), 0.5, allowed).feasible
    assert score(make_trial(0.4, short_ttft_p95_s=1.6), 0.5, allowed).short > 0.0


def test_what_one_would_do_by_hand_is_not_held_against_a_config() -> None:
    by_hand = make_trial(0.4, short_ttft_p95_s=3.0)
    allowed = Allowed.by(make_trial(2.0, short_ttft_p95_s=1.0), by_hand, 0.5)
    assert score(by_hand, 0.5, allowed).feasible


def test_refusing_more_than_the_baseline_is_not_feasible() -> None:
    assert not score(make_trial(0.1), 0.5, Allowed(0.0)).feasible
    assert lost_rate({"completed": 9, "refused": 1}) == pytest.approx(0.1)


def test_a_run_stopped_early_has_no_ttft() -> None:
    points = score(make_trial(0.6, TrialStatus.ABORTED), 0.5, Allowed(0.1))
    assert points.long_ttft_s == PENALTY_S
    assert not points.feasible


def test_an_infinite_ttft_is_a_large_one() -> None:
    assert score(make_trial(0.1, long_ttft_p95_s=None), 0.5, Allowed(0.1)).long_ttft_s == PENALTY_S


def test_a_crash_is_a_constraint() -> None:
    assert score(make_trial(0.1, TrialStatus.CRASHED), 0.5, Allowed(0.1)) == CRASHED
    assert [name for name, _ in CRASHED.constraints] == ["pause", "shed", "short_ttft", "crash"]


def test_what_a_stopped_run_never_sent_is_not_held_against_it_but_its_pause_is() -> None:
    counts = {"completed": 1, "never_sent": 9}
    stopped = score(make_trial(0.6, TrialStatus.ABORTED, counts=counts), 0.5, Allowed(0.0))
    assert stopped.lost == 0.0
    assert stopped.pause > 0
