import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import TraceError
from engine.core.trace import TraceRow
from loadtests.traffic.replay import ReplayOptions, schedule_from_trace


def row(request_id: str, t: float, prompt: int = 100, output: int = 10, **fields: object) -> TraceRow:
    return TraceRow(id=request_id, t=t, prompt_tokens=prompt, output_tokens=output, **fields)  # type: ignore[arg-type]


ROWS = [row(f"r{i}", i + 0.5, prompt=100 * (i + 1), user=f"u{i % 3}") for i in range(10)]


def times(rows: list[TraceRow], **options: object) -> list[float]:
    schedule = schedule_from_trace(rows, 1, ReplayOptions(**options))  # type: ignore[arg-type]
    return [request.at_s for request in schedule.requests]


def test_requests_come_at_their_recorded_times() -> None:
    schedule = schedule_from_trace(ROWS, 1)
    assert [request.at_s for request in schedule.requests] == [r.t for r in ROWS]
    assert [request.max_tokens for request in schedule.requests] == [10] * 10
    assert schedule.notes == ()


def test_what_the_reader_of_the_trace_made_up_is_noted_first() -> None:
    schedule = schedule_from_trace([*ROWS, row("x", 1.0, output=0)], 1, read_notes=["starts are drawn"])
    assert schedule.notes == ("starts are drawn", "1 requests without prompt or answer left out")


def test_speed_and_window() -> None:
    assert times(ROWS, start_s=2.0, end_s=4.0) == [0.5, 1.5]
    assert times(ROWS, start_s=2.0, end_s=4.0, speed=2.0) == [0.25, 0.75]


def test_long_silences_are_shortened() -> None:
    assert times([row("a", 0.5), row("b", 1000.5), row("c", 1001.0)], max_idle_s=2.0) == [0.5, 2.5, 3.0]


@given(st.integers(0, 1000), st.floats(0.1, 0.9))
def test_thinning_keeps_whole_users(seed: int, share: float) -> None:
    options = ReplayOptions(keep_share=share)
    try:
        kept = {request.id for request in schedule_from_trace(ROWS, seed, options).requests}
    except TraceError:
        kept = set()
    by_user = [{r.id for r in ROWS if r.user == user} for user in ("u0", "u1", "u2")]
    assert all(ids <= kept or not ids & kept for ids in by_user)


def test_what_does_not_fit_is_cut_and_said() -> None:
    schedule = schedule_from_trace(
        [row("a", 0.5, prompt=9000, output=500), row("b", 1.5)], 1, ReplayOptions(context_tokens=1000)
    )
    assert (schedule.requests[0].prompt_tokens, schedule.requests[0].max_tokens) == (500, 500)
    assert schedule.notes == ("1 requests cut to the context or to the longest answer allowed",)


def test_disorder_failed_rows_and_duplicate_ids_are_mended_and_said() -> None:
    schedule = schedule_from_trace([row("a", 3.5), row("a", 1.5), row("x", 2.0, output=0)], 1)
    assert [(request.id, request.at_s) for request in schedule.requests] == [("a", 1.5), ("a~2", 3.5)]
    assert len(schedule.notes) == 3


def test_whole_second_stamps_are_spread_by_the_seed() -> None:
    rows = [row(f"r{i}", float(i // 4)) for i in range(40)]
    first = schedule_from_trace(rows, 1)
    assert len({request.at_s for request in first.requests}) == 40
    assert "spread" in first.notes[0]
    assert first == schedule_from_trace(rows, 1)
    assert first.requests != schedule_from_trace(rows, 2).requests


def test_the_longest_tenth_counts_as_long_unless_said() -> None:
    assert schedule_from_trace(ROWS, 1).long_prompt_tokens == 900
    assert schedule_from_trace(ROWS, 1, ReplayOptions(long_prompt_tokens=500)).long_prompt_tokens == 500


def test_prefix_blocks_cancels_and_warm_up_are_carried_over() -> None:
    rows = [row("a", 0.5, prefix=("x", "y"), cancel_s=2.0), row("b", 5.5)]
    schedule = schedule_from_trace(rows, 1, ReplayOptions(warm_up_s=1.0), block_tokens=16)
    first, second = schedule.requests
    assert (first.prefix[:2], first.prefix_block_tokens, first.cancel_s) == (("x", "y"), 16, 2.0)
    assert (first.measured, second.measured) == (False, True)


def test_nothing_left_is_an_error_not_an_empty_run() -> None:
    with pytest.raises(TraceError, match="no request is left"):
        schedule_from_trace(ROWS, 1, ReplayOptions(start_s=100.0))


def test_rows_are_not_changed() -> None:
    before = [dataclasses.replace(r) for r in ROWS]
    schedule_from_trace(ROWS, 1, ReplayOptions(speed=3.0, context_tokens=200))
    assert before == ROWS


def test_in_session_mode_later_turns_wait_for_the_one_before() -> None:
    rows = [row("a", 0.5, session="s"), row("b", 4.5, session="s", after="a", think_s=2.0)]
    options = ReplayOptions(mode="session", speed=2.0)
    first, second = schedule_from_trace(rows, 1, options).requests
    assert (first.at_s, first.think_s) == (0.25, None)
    assert (second.after, second.think_s, second.at_s) == ("a", 1.0, 2.25)
    opened = schedule_from_trace(rows, 1).requests[1]
    assert (opened.after, opened.think_s) == ("a", None)


def test_a_turn_whose_predecessor_is_outside_the_window_starts_at_its_own_time() -> None:
    rows = [row("a", 0.5, session="s"), row("b", 4.5, session="s", after="a", think_s=2.0)]
    schedule = schedule_from_trace(rows, 1, ReplayOptions(mode="session", start_s=2.0))
    assert [(r.id, r.after, r.think_s, r.at_s) for r in schedule.requests] == [("b", None, None, 2.5)]
    assert "start at their own time" in schedule.notes[0]


def test_long_thought_is_shortened_like_long_silence() -> None:
    rows = [row("a", 0.5), row("b", 900.5, after="a", think_s=890.0)]
    options = ReplayOptions(mode="session", max_idle_s=5.0)
    assert schedule_from_trace(rows, 1, options).requests[1].think_s == 5.0


def test_users_who_return_try_again_and_others_do_not() -> None:
    rows = [row("a", 0.5, user="u"), row("b", 1.5, user="u"), row("c", 2.5, user="once"), row("d", 3.5)]
    schedule = schedule_from_trace(rows, 1, ReplayOptions(retries=2))
    assert [request.retries for request in schedule.requests] == [2, 2, 0, 0]


def test_a_request_whose_client_left_asks_for_what_it_asked_for_then() -> None:
    rows = [
        row("a", 0.5, output=0, cancel_s=1.0, max_tokens=80),
        row("b", 1.5, output=7, cancel_s=1.0),
        row("c", 2.5, output=7, max_tokens=80),
    ]
    assert [request.max_tokens for request in schedule_from_trace(rows, 1).requests] == [80, 8, 7]


def test_a_shrunken_trace_shares_as_much_of_shorter_prompts() -> None:
    rows = [row("a", 0.5, prompt=1280, output=160, prefix=("x", "y", "z"))]
    (request,) = schedule_from_trace(rows, 1, ReplayOptions(shrink=16), block_tokens=512).requests
    assert (request.prompt_tokens, request.max_tokens, request.prefix_block_tokens) == (80, 16, 32)
    assert request.prefix == ("x", "y", "z")


def test_what_counts_as_long_is_what_is_new_in_a_prompt() -> None:
    turns = [
        row(f"t{n}", n + 0.5, prompt=1000 + 100 * n, session="s", after=f"t{n - 1}" if n else None)
        for n in range(20)
    ]
    assert schedule_from_trace(turns, 1).long_prompt_tokens < 200
