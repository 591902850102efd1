import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.trace import TraceRow
from loadtests.traces.fixes import (
    ClockFaults,
    Notes,
    cap_lengths,
    clock_faults,
    crop,
    drop_failed,
    link_turns,
    mend,
    retime,
    spread,
    thin,
    unique_ids,
)


def row(request_id: str, t: float, prompt: int = 100, output: int = 10, **fields: object) -> TraceRow:
    return TraceRow(id=request_id, t=t, prompt_tokens=prompt, output_tokens=output, **fields)  # type: ignore[arg-type]


def mended(rows: list[TraceRow], seed: int = 1) -> tuple[list[TraceRow], tuple[str, ...]]:
    notes = Notes()
    return list(mend(rows, clock_faults([r.t for r in rows]), seed, notes)), notes.lines


def test_a_sound_clock_is_left_alone() -> None:
    rows = [row(f"r{i}", i + 0.25) for i in range(20)]
    assert mended(rows) == (rows, ())
    assert clock_faults([]) == ClockFaults()


def test_requests_without_prompt_or_answer_are_counted_not_silently_dropped() -> None:
    notes = Notes()
    kept = list(drop_failed([row("a", 0, output=0), row("b", 0, prompt=0), row("c", 0)], notes))
    assert [r.id for r in kept] == ["c"]
    assert notes.lines == ("2 requests without prompt or answer left out",)


def test_rows_in_the_order_of_their_ends_are_sorted_and_that_is_nothing_to_note() -> None:
    rows, notes = [row("a", 5.5), row("b", 1.5), row("c", 3.5)], Notes()
    ordered = mend(rows, clock_faults([r.t for r in rows], by_end=True), 1, notes)
    assert [r.id for r in ordered] == ["b", "c", "a"]
    assert notes.lines == ()


def test_late_rows_are_counted_and_sorted() -> None:
    rows, notes = mended([row("a", 5.5), row("b", 1.5), row("c", 3.5), row("d", 6.5)])
    assert [r.id for r in rows] == ["b", "c", "a", "d"]
    assert notes == ("2 requests were out of order; sorted by time",)


@given(st.integers(0, 99), st.integers(1, 60), st.lists(st.integers(0, 50), min_size=10, max_size=80))
def test_spreading_moves_nobody_out_of_the_step_and_lets_nobody_overtake(seed, step_s, steps) -> None:
    rows = [row(str(i), float(step * step_s)) for i, step in enumerate(sorted(steps))]
    moved = list(spread(rows, step_s, seed, Notes()))
    assert [r.id for r in moved] == [r.id for r in rows]
    assert all(a.t <= b.t < a.t + step_s for a, b in zip(rows, moved, strict=True))
    assert moved == list(spread(rows, step_s, seed, Notes()))
    assert sorted(m.t for m in moved) == [m.t for m in moved]


def test_stamps_every_three_seconds_are_told_from_regular_arrivals() -> None:
    assert clock_faults([3.0 * (i // 5) for i in range(50)]).step_s == 3
    assert clock_faults([10.0 * i for i in range(50)]).step_s == 1
    assert clock_faults([0.5 * i for i in range(50)]).step_s == 0
    assert clock_faults([1.0, 1.0, 2.0]).step_s == 0


def test_spreading_keeps_precise_stamps_among_coarse_ones() -> None:
    rows = [row("a", 1.0), row("b", 1.0), row("p", 1.5), row("c", 2.0)]
    moved = list(spread(rows, 1, 3, Notes()))
    assert next(r.t for r in moved if r.id == "p") == 1.5
    assert [r.t for r in moved] == sorted(r.t for r in moved)


@given(st.floats(40, 10_000), st.floats(0.05, 30), st.lists(st.booleans(), min_size=40, max_size=200))
def test_milliseconds_among_seconds_are_found_and_divided(start_s, gap_s, in_ms) -> None:
    in_ms = [False, *in_ms, True, False, True, False]
    true_s = [start_s + gap_s * i for i in range(len(in_ms))]
    rows = [row(str(i), t * (1000 if ms else 1)) for i, (t, ms) in enumerate(zip(true_s, in_ms, strict=True))]
    back, notes = mended(rows)
    assert [r.t for r in back] == pytest.approx(true_s)
    assert "milliseconds among seconds" in notes[0]


@given(st.permutations(range(1, 60)))
def test_disorder_alone_is_not_taken_for_mixed_units(order) -> None:
    assert not clock_faults([7.3 * i for i in order]).mixed_units


def test_clocks_that_restart_and_long_nights_are_not_taken_for_mixed_units() -> None:
    restarting = [12.0 * turn for _ in range(9) for turn in range(40)]
    assert not clock_faults(restarting).mixed_units
    assert not clock_faults([i * 0.5 for i in range(50)] + [30_000 + i * 0.5 for i in range(50)]).mixed_units


def test_cropping_is_in_the_traces_own_seconds() -> None:
    rows = [row(str(i), float(i)) for i in range(5)]
    assert [r.id for r in crop(rows, 1.0, 3.0)] == ["1", "2"]
    assert [r.id for r in crop(rows, 3.0)] == ["3", "4"]


@given(st.integers(0, 1000), st.floats(0.1, 0.9))
def test_thinning_keeps_whole_users_and_sessions(seed, share) -> None:
    rows = [row(f"u{i}", i, user=f"u{i % 5}") for i in range(30)]
    rows += [row(f"s{i}", i, session=f"s{i % 5}") for i in range(30)]
    kept = {r.id for r in thin(rows, share, seed)}
    for whose in [f"u{i}" for i in range(5)] + [f"s{i}" for i in range(5)]:
        ids = {r.id for r in rows if whose in (r.user, r.session)}
        assert ids <= kept or not ids & kept
    assert list(thin(rows, 1.0, seed)) == rows


def test_silences_are_shortened_and_thinking_scales_with_time() -> None:
    rows = [row("a", 2.0), row("b", 500.0, think_s=400.0), row("c", 502.0, think_s=1.0)]
    slow = list(retime(rows, start_s=1.0, max_idle_s=10.0, speed=2.0))
    assert [(r.t, r.think_s) for r in slow] == [(0.5, None), (5.5, 5.0), (6.5, 0.5)]


def test_duplicate_ids_are_renamed_and_turns_follow_the_latest() -> None:
    rows = [row("a", 0), row("a~2", 1), row("a", 2), row("b", 3, after="a"), row("a", 4, after="a")]
    notes = Notes()
    named = list(unique_ids(rows, notes))
    assert [(r.id, r.after) for r in named] == [
        ("a", None),
        ("a~2", None),
        ("a~3", None),
        ("b", "a~3"),
        ("a~4", "a~3"),
    ]
    assert notes.lines == ("2 duplicate ids renamed",)


@given(st.lists(st.sampled_from(["a", "a~2", "a~3", "b", "b~2"]), max_size=20))
def test_ids_are_unique_whatever_they_were(ids) -> None:
    named = [r.id for r in unique_ids([row(name, 0) for name in ids], Notes())]
    assert len(set(named)) == len(ids)


def test_a_turn_whose_predecessor_is_gone_no_longer_waits_for_it() -> None:
    rows = [row("b", 1, after="a", think_s=5.0), row("c", 2, after="b", think_s=1.0), row("d", 3, after="d")]
    notes = Notes()
    linked = list(link_turns(rows, notes))
    assert [(r.after, r.think_s) for r in linked] == [(None, None), ("b", 1.0), (None, None)]
    assert notes.lines == ("2 turns whose previous turn is not here start at their own time",)


def test_what_is_cut_loses_its_surplus_prefix_blocks_too() -> None:
    long = row("a", 0, prompt=1000, output=500, prefix=tuple("abcdefghij"), cached=900)
    notes = Notes()
    (cut,) = cap_lengths([long], notes, context_tokens=600, block_tokens=100)
    assert (cut.prompt_tokens, cut.output_tokens, cut.cached) == (300, 300, 300)
    assert cut.prefix == ("a", "b", "c")
    assert len(notes.lines) == 1
    assert list(cap_lengths([long], Notes(), max_output_tokens=500)) == [long]


@pytest.mark.parametrize("context", [0, 1, 2])
def test_a_context_that_holds_nothing_leaves_a_token_of_each(context: int) -> None:
    (cut,) = cap_lengths([row("a", 0.0)], Notes(), context_tokens=context)
    assert (cut.prompt_tokens, cut.output_tokens) == (1, 1)


def test_no_fix_changes_the_rows_it_is_given() -> None:
    rows = [row("a", 1.0, think_s=1.0), row("a", 0.0, after="x")] * 6
    before = [dataclasses.replace(r) for r in rows]
    mended(rows)
    list(
        cap_lengths(
            link_turns(unique_ids(retime(rows, speed=2.0), Notes()), Notes()), Notes(), context_tokens=50
        )
    )
    assert rows == before
