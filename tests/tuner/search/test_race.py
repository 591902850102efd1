"""What the race makes of runs that nothing was predicted of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.core.config import SchedulerConfig
from tuner.search.objective import Allowed
from tuner.search.race import Race
from tuner.search_space import SearchSpace, fixed_chunks
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial

BASE = SchedulerConfig()
SPACE = SearchSpace(BASE, 0.5, 4000, 3)
SEED = 1


def make_trial(
    number: int,
    chunk_tokens: int,
    pause_s: float,
    ttft_s: float,
    status: TrialStatus = TrialStatus.DONE,
) -> Trial:
    return Trial(
        number=number,
        kind=TrialKind.SEARCH,
        status=status,
        config=fixed_chunks(BASE, chunk_tokens),
        seed=SEED,
        worst_pause_s=pause_s,
        long_ttft_p95_s=ttft_s,
        counts={"completed": 26},
    )


def singles(first: int) -> list[Trial]:
    """Runs of configs that were made once: they say nothing of how far repeats lie apart."""
    return [make_trial(first + i, 64 + i, 0.3 + 0.02 * i, 9.0) for i in range(6)]


def repeats(factors: Sequence[float]) -> list[Trial]:
    return [make_trial(i, 128, 0.42 * factor, 8.0 * factor) for i, factor in enumerate(factors)]


def race_of(trials: Sequence[Trial]) -> Race:
    return Race(SPACE, trials, [], Allowed(), lambda trial: True, SEED, [BASE])


def test_without_a_simulator_repeats_tell_how_far_runs_lie_apart() -> None:
    wide = race_of([*repeats((0.85, 1.0, 1.15, 1.0)), *singles(10)])
    calm = race_of([*repeats((0.99, 1.0, 1.01, 1.0)), *singles(10)])
    for wider, calmer in ((wide.pause, calm.pause), (wide.ttft, calm.ttft)):
        assert wider.spread >= 0.1
        assert calmer.spread <= 0.03


def test_without_a_simulator_runs_made_once_tell_nothing_of_the_spread() -> None:
    assert race_of(singles(0)).pause.spread == race_of([]).pause.spread


def test_without_a_simulator_a_difference_within_repeats_is_no_gain() -> None:
    def gains(factors: Sequence[float]) -> bool:
        slower = [make_trial(10 + i, 100, 0.33, 8.6 * factor) for i, factor in enumerate(factors)]
        race = race_of([*repeats(factors), *slower])
        one, other = race.of(fixed_chunks(BASE, 128)), race.of(fixed_chunks(BASE, 100))
        assert one is not None
        assert other is not None
        return race.gains(one, other)

    assert gains((0.99, 1.0, 1.01))
    assert not gains((0.85, 1.0, 1.15))


def test_a_config_is_expected_to_come_to_the_mean_of_its_runs() -> None:
    standing = race_of(repeats((0.8, 1.25))).of(fixed_chunks(BASE, 128))
    assert standing is not None
    assert standing.pause.median_s == pytest.approx(0.42)


def test_a_run_that_the_client_spoiled_is_no_surprise() -> None:
    slow = replace(make_trial(9, 300, 3.0, 9.0), predicted_worst_pause_s=0.3)
    spoiled = replace(slow, status=TrialStatus.INVALID)
    assert race_of([*singles(0), slow]).is_surprising(slow)
    assert not race_of([*singles(0), spoiled]).is_surprising(spoiled)
