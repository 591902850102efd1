"""Correcting predictions by the live runs so far."""

import pytest

from engine.core.config import PrefillPolicy
from tuner.correction import Pair, corrected_errors, correction

FIXED, PACED = PrefillPolicy.FIXED, PrefillPolicy.PACED


def pairs(policy: PrefillPolicy, *ratios: float) -> list[Pair]:
    return [Pair(policy, predicted=0.4, measured=0.4 * ratio) for ratio in ratios]


def test_nothing_is_corrected_before_the_first_live_run() -> None:
    assert correction([], FIXED) == 1.0


def test_the_more_runs_agree_the_more_they_are_believed() -> None:
    few, many = correction(pairs(FIXED, 1.2), FIXED), correction(pairs(FIXED, *[1.2] * 12), FIXED)
    assert 1.0 < few < many < 1.2
    assert many == pytest.approx(1.2, rel=0.01)


def test_a_policy_that_was_never_run_takes_what_all_have_in_common() -> None:
    seen = pairs(FIXED, 1.2, 1.2, 1.2)
    assert 1.0 < correction(seen, PACED) < correction(seen, FIXED)


def test_a_policy_with_runs_of_its_own_goes_its_own_way() -> None:
    seen = pairs(FIXED, *[1.0] * 6) + pairs(PACED, *[1.3] * 6)
    assert correction(seen, FIXED) < 1.06
    assert correction(seen, PACED) > 1.2


@pytest.mark.parametrize("odd", [0.01, 50.0])
def test_one_odd_run_moves_little(odd: float) -> None:
    seen = pairs(FIXED, 1.05, 1.1, 1.1, 1.15, odd)
    assert 1.0 < correction(seen, FIXED) < 1.15


def test_never_more_than_a_factor_of_two() -> None:
    assert correction(pairs(FIXED, *[9.0] * 40), FIXED) <= 2.0
    assert correction(pairs(FIXED, *[0.1] * 40), FIXED) >= 0.5


def test_the_expected_error_of_a_run_comes_from_the_others() -> None:
    assert corrected_errors(pairs(FIXED, 1.5)) == [pytest.approx(1 - 1 / 1.5)]
    errors = corrected_errors(pairs(FIXED, *[1.5] * 10))
    assert max(errors) < 0.05
