from __future__ import annotations

import math

import pytest

from tuner.commands.replay import ttft_line


@pytest.mark.parametrize(
    ("n", "line"),
    [(200, "3.00 s (p95 of 200)"), (199, "1.00 s (median of 199)"), (19, "3.00 s (worst of 19)")],
)
def test_a_percentile_is_printed_only_when_the_samples_support_it(n, line) -> None:
    assert ttft_line(1.0, 3.0, n) == line


def test_a_first_token_that_never_came_is_no_number() -> None:
    assert ttft_line(1.0, math.inf, 5) == "∞ (worst of 5)"
    assert ttft_line(None, None, 0) == "– (worst of 0)"
