from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.recording.estimate import TokenEstimate


def test_a_text_nobody_knows_of_has_a_quarter_token_a_character() -> None:
    assert [TokenEstimate().of_prompt(chars) for chars in (0, 1, 4000)] == [1, 1, 1000]
    assert TokenEstimate().of_text(40) == 10


@given(st.integers(0, 60), st.floats(0.05, 2.0), st.lists(st.integers(1, 200_000), min_size=20, max_size=40))
def test_what_was_counted_tells_of_what_was_not(added: int, per_char: float, lengths: list[int]) -> None:
    estimate = TokenEstimate()
    for chars in [*lengths, 10, 200_000]:
        estimate.learn(chars, round(added + per_char * chars))
    for chars in (10, 5_000, 150_000):
        true = added + per_char * chars
        assert estimate.of_prompt(chars) == pytest.approx(true, rel=0.05, abs=0.01 * per_char * 200_000)


def test_a_short_prompt_in_a_large_template_says_little_of_a_long_one() -> None:
    estimate = TokenEstimate()
    estimate.learn(17, 32)
    assert estimate.of_prompt(17) == 32
    assert estimate.of_prompt(10_017) == 2532
    assert estimate.of_text(400) == 100
