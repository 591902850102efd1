from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.trace import TraceOriginal, TraceRow
from loadtests.traffic.sessions import BLOCK_TOKENS, follow_on, share_blocks


def row(request_id: str, t: float = 0.0, prompt: int = 100, **fields: object) -> TraceRow:
    return TraceRow(id=request_id, t=t, prompt_tokens=prompt, output_tokens=10, **fields)  # type: ignore[arg-type]


def followed(*rows: TraceRow) -> list[tuple[str | None, float | None]]:
    return [(one.after, one.think_s) for one in follow_on(rows)]


def test_turns_without_numbers_follow_one_another_in_time() -> None:
    rows = [row("a", 1.0, session="s"), row("x", 2.0, session="other"), row("b", 5.0, session="s")]
    assert followed(*rows) == [(None, None), (None, None), ("a", 4.0)]


def test_thinking_begins_at_the_recorded_end_of_the_turn_before() -> None:
    answered = row("a", 1.0, session="s", orig=TraceOriginal(e2e_s=3.0))
    assert followed(answered, row("b", 5.0, session="s")) == [(None, None), ("a", 1.0)]
    assert followed(answered, row("b", 2.0, session="s"))[1] == ("a", 0.0)


def test_what_a_trace_says_itself_stays() -> None:
    rows = [row("a", session="s", turn=1), row("b", 1.0, session="s", turn=2, after="a", think_s=0.25)]
    assert followed(*rows) == [(None, None), ("a", 0.25)]


def test_a_numbered_turn_that_follows_nobody_overlapped_and_stays_alone() -> None:
    assert followed(row("a", session="s", turn=1), row("b", 1.0, session="s", turn=2))[1] == (None, None)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6))
def test_without_blocks_a_turn_is_the_prompt_before_plus_new_text(lengths: list[int]) -> None:
    rows = [
        row(f"t{n}", prompt=tokens, session="s", after=f"t{n - 1}" if n else None)
        for n, tokens in enumerate(lengths)
    ]
    named = [one for one, _ in share_blocks(rows, 0)]
    for before, one in itertools.pairwise(named):
        if one.prompt_tokens > before.prompt_tokens:
            assert one.prefix[: -(-before.prompt_tokens // BLOCK_TOKENS)] == before.prefix
        else:
            assert not set(one.prefix) & set(before.prefix)


def test_other_sessions_share_nothing() -> None:
    first, second = (one for one, _ in share_blocks([row("a", session="s"), row("b", session="u")], 0))
    assert not set(first.prefix) & set(second.prefix)


def test_two_turns_may_follow_one() -> None:
    rows = [row("a", session="s"), row("b", prompt=300, after="a"), row("c", prompt=300, after="a")]
    first, second, third = (one for one, _ in share_blocks(rows, 0))
    assert first.prefix[0] == second.prefix[0] == third.prefix[0]
    assert second.prefix[2:] != third.prefix[2:]


def test_a_partial_block_is_the_beginning_of_the_block_it_grows_into() -> None:
    rows = [
        row("a", prompt=40, prefix=("x", "y", "z#8")),
        row("b", prompt=70, prefix=("x", "y", "z", "u", "v#6"), after="a"),
        row("c", prompt=90, prefix=("x", "y", "z", "u", "v", "w#10"), after="b"),
    ]
    named = share_blocks(rows, 16)
    assert [one.prefix for one, _ in named] == [
        ("x", "y", "z"),
        ("x", "y", "z", "u", "v"),
        ("x", "y", "z", "u", "v", "w#10"),
    ]
    assert {block for _, block in named} == {16}


@pytest.mark.parametrize(("prefix", "prompt"), [(("x", "other", "z", "u"), 60), (("x", "y", "z#2"), 34)])
def test_a_turn_that_does_not_go_on_leaves_the_one_before_as_it_was(
    prefix: tuple[str, ...], prompt: int
) -> None:
    rows = [row("a", prompt=40, prefix=("x", "y", "z#8")), row("b", prompt=prompt, prefix=prefix, after="a")]
    assert share_blocks(rows, 16)[0][0].prefix == ("x", "y", "z#8")


def test_rows_by_themselves_have_no_blocks() -> None:
    assert share_blocks([row("a", prefix=("x",))], 0) == [(row("a"), 0)]
