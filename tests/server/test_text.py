from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.server.text import StopStrings

short = st.text("ab", min_size=1, max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    strings = StopStrings(stops)
    shown = [strings.push(piece) for piece in pieces]
    shown.append("" if strings.stopped else strings.finish())
    return "".join(shown), strings.stopped


@given(stops=st.lists(short, min_size=1, max_size=3), pieces=st.lists(st.text("abc", max_size=5)))
def test_text_ends_before_the_first_stop_string_however_it_is_cut(
    stops: list[str], pieces: list[str]
) -> None:
    shown, stopped = run(stops, pieces)
    text = "".join(pieces)
    assert stopped == any(stop in text for stop in stops)
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    if not stopped:
        assert shown == text


@given(pieces=st.lists(st.text("abc", max_size=5)))
def test_nothing_is_held_back_that_cannot_begin_a_stop_string(pieces: list[str]) -> None:
    strings = StopStrings(["abca"])
    shown = ""
    for at, piece in enumerate(pieces):
        shown += strings.push(piece)
        held = "".join(pieces[: at + 1])[len(shown) :]
        if not strings.stopped:
            assert "abca".startswith(held)
            assert len(held) < 4


@pytest.mark.parametrize("pieces", [["xEND", "more"], ["xE", "N", "D"], ["x", "END"]])
def test_nothing_follows_a_stop(pieces: list[str]) -> None:
    assert run(["END"], pieces) == ("x", True)


def test_of_two_stop_strings_ending_together_the_longer_counts() -> None:
    assert run(["b", "ab"], ["xa", "b"]) == ("x", True)


@given(
    text=st.text(max_size=60),
    cuts=st.lists(st.integers(0, 60)),
    stops=st.lists(st.text(min_size=1, max_size=3), max_size=3),
)
def test_how_text_is_cut_does_not_matter(text: str, cuts: list[int], stops: list[str]) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    assert run(stops, pieces) == run(stops, [text])


def test_without_stop_strings_all_text_passes_at_once() -> None:
    assert StopStrings().push("abc") == "abc"
