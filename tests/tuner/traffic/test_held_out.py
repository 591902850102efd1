from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.trace import TraceRow
from loadtests.traffic.recorded import Recorded
from tuner.traffic.held_out import HeldOut, Part
from tuner.traffic.windows import confirmed_seed, is_confirmed, searched_index, simulated_seed

WINDOW_S = 10.0


def trace(rows: Iterable[tuple[float, str | None]]) -> Recorded:
    return Recorded(
        tuple(
            TraceRow(id=f"r{n}", t=t, prompt_tokens=10, output_tokens=5, session=session)
            for n, (t, session) in enumerate(rows)
        ),
        block_tokens=0,
    )


def played(part: Part) -> list[TraceRow]:
    return [row for row in part.recorded.rows if part.start_s <= row.t < part.start_s + WINDOW_S]


def sessions(part: Part) -> set[str]:
    return {row.session or row.id for row in played(part)}


def test_later_windows_are_confirmed_on_without_the_sessions_of_the_first() -> None:
    first = [(float(n), f"early{n}") for n in range(10)]
    later = [(10.0 + n, f"early{n}" if n < 3 else f"late{n}") for n in range(30)]
    parts = HeldOut(trace([*first, *later]), WINDOW_S)
    assert sessions(parts.searched(0)) == {f"early{n}" for n in range(10)}
    confirmed = [parts.confirmed(index) for index in range(4)]
    assert {part.start_s for part in confirmed} == {10.0, 30.0}
    assert all(not sessions(part) & sessions(parts.searched(0)) for part in confirmed)
    assert {parts.searched(index).start_s for index in range(4)} == {0.0, 20.0}
    assert parts.num_windows == 2
    assert parts.note == "confirmed on 2 later windows, without the sessions of the first"


def test_a_window_with_next_to_nothing_in_it_is_not_confirmed_on() -> None:
    rows = [(float(n), None) for n in range(10)] + [(10.0, None)] + [(20.0 + n, None) for n in range(10)]
    parts = HeldOut(trace(rows), WINDOW_S)
    assert {parts.confirmed(index).start_s for index in range(3)} == {20.0}


def test_a_trace_no_longer_than_a_run_is_split_by_session() -> None:
    parts = HeldOut(trace((n / 4, f"s{n % 8}") for n in range(32)), WINDOW_S)
    searched, confirmed = sessions(parts.searched(0)), sessions(parts.confirmed(0))
    assert searched | confirmed == {f"s{n}" for n in range(8)}
    assert not searched & confirmed
    assert parts.num_windows == 1
    assert "half of its sessions" in parts.note


def test_of_a_single_session_nothing_can_be_held_out_and_that_is_said() -> None:
    parts = HeldOut(trace((float(n), "only") for n in range(5)), WINDOW_S)
    assert played(parts.searched(0)) == played(parts.confirmed(0))
    assert "the very requests" in parts.note


@given(
    st.lists(st.tuples(st.floats(0, 60), st.sampled_from([None, *"abcdefgh"])), min_size=1, max_size=60),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_whatever_is_held_out_has_requests_and_meets_no_searched_session(
    rows: list[tuple[float, str | None]], searched: int, confirmed: int
) -> None:
    parts = HeldOut(trace(rows), WINDOW_S)
    assert played(parts.searched(searched))
    assert played(parts.confirmed(confirmed))
    if "very requests" not in parts.note:
        assert not sessions(parts.searched(0)) & sessions(parts.confirmed(confirmed))


@pytest.mark.parametrize("seed", [0, 7, 123_456])
def test_seeds_of_different_uses_never_meet(seed: int) -> None:
    confirmed = {confirmed_seed(seed, round_, index) for round_ in range(4) for index in range(9)}
    simulated = {simulated_seed(seed, index) for index in range(15)}
    assert not confirmed & simulated
    assert seed not in confirmed | simulated
    assert all(is_confirmed(one, seed) for one in confirmed)
    assert not any(is_confirmed(one, seed) for one in (seed, *simulated))
    assert sorted(searched_index(one, seed) for one in (seed, *simulated)) == list(range(16))
