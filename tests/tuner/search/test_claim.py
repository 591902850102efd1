from __future__ import annotations

from dataclasses import replace

import pytest

from engine.core.config import SchedulerConfig
from tuner.search.claim import claim_of, most_beyond
from tuner.search_space import fixed_chunks
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial


def run(worst_pause_s: float, num_streams: int) -> Trial:
    return Trial(
        number=0, kind=TrialKind.CONFIRM, status=TrialStatus.DONE, config=SchedulerConfig(), seed=1,
        worst_pause_s=worst_pause_s, num_streams=num_streams, counts={"completed": num_streams + 1},
    )  # fmt: skip


def test_no_pause_in_so_many_streams_bounds_the_rate() -> None:
    assert most_beyond(59) == pytest.approx(0.05, abs=0.001)
    assert most_beyond(3000) == pytest.approx(3 / 3000, rel=0.01)
    assert most_beyond(0) == 1.0


def test_a_claim_is_what_was_tested() -> None:
    runs = [run(0.41, 10), run(0.44, 12)]
    claim = claim_of(runs, runs)
    assert (claim.num_runs, claim.num_streams, claim.num_requests) == (2, 22, 24)
    assert claim.longest_pause_s == 0.44
    assert claim.most_beyond == most_beyond(22)


def test_who_tries_several_until_one_passes_must_prove_more() -> None:
    runs = [run(0.41, 10)]
    failed = [replace(run(0.6, 3), config=fixed_chunks(SchedulerConfig(), chunk)) for chunk in (64, 96)]
    claim = claim_of(runs, [*failed, *runs])
    assert claim.num_candidates == 3
    assert claim.most_beyond == most_beyond(10, 3) > most_beyond(10)


@pytest.mark.parametrize(
    ("num_streams", "num_beyond", "bound"), [(10, 1, 0.3942), (30, 3, 0.2386), (100, 10, 0.1637), (4, 4, 1.0)]
)
def test_events_loosen_the_bound(num_streams: int, num_beyond: int, bound: float) -> None:
    """Expected: the 0.95 quantile of Beta(x + 1, n - x)."""
    assert most_beyond(num_streams, 1, num_beyond) == pytest.approx(bound, abs=5e-5)


def test_runs_that_were_set_aside_are_said_and_weaken_the_claim() -> None:
    runs, accident = [run(0.41, 10)], replace(run(1.7, 4), status=TrialStatus.SUSPECT)
    claim, twice = claim_of(runs, [accident, *runs]), claim_of(runs, [accident, accident, *runs])
    assert (claim.num_accidents, claim.num_accident_streams, claim.longest_accident_s) == (1, 4, 1.7)
    assert (claim.num_runs, claim.num_streams) == (1, 10)
    assert claim.most_beyond == most_beyond(14, 1, 4)
    assert twice.most_beyond == most_beyond(18, 1, 8)
    assert most_beyond(10) < most_beyond(14, 1, 4) < most_beyond(18, 1, 8)


def test_an_accident_that_cut_the_first_answer_counts_too() -> None:
    runs = [run(0.41, 10)]
    claim = claim_of(runs, [replace(run(1.7, 0), status=TrialStatus.SUSPECT), *runs])
    assert claim.most_beyond == most_beyond(11, 1, 1)


def test_the_very_requests_searched_on_bound_nothing() -> None:
    runs = [run(0.41, 10)] * 3
    claim = claim_of(runs, runs, num_fresh=0)
    assert (claim.num_windows, claim.num_streams, claim.longest_pause_s) == (0, 30, 0.41)
    assert claim.most_beyond is None


@pytest.mark.parametrize(("num_fresh", "num_windows", "num_different"), [(None, 3, 30), (2, 2, 20)])
def test_a_window_that_is_played_again_proves_no_more(
    num_fresh: int | None, num_windows: int, num_different: int
) -> None:
    runs = [run(0.41, 10)] * 3
    claim = claim_of(runs, runs, num_fresh)
    assert claim.num_windows == num_windows
    assert claim.num_streams == 30
    assert claim.most_beyond == most_beyond(num_different)
