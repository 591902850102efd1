"""Conversations are told from their prompts alone, and never grow in memory."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.redaction import Redactor
from engine.core.turns import Span, Stem, Turn, Turns

BLOCK = 64  # tokens: what Redactor hashes
REDACTOR = Redactor(b"salt" * 4)


def stem(units: list[int] | str, length: int | None = None) -> Stem:
    return Stem(units, len(units) if length is None else length, list(REDACTOR.hashes(units)))


def place(turns: Turns, name: str, units: list[int] | str, at_s: float, user: str | None = None) -> Turn:
    """A request that arrives at `at_s` and ends half a second later."""
    return turns.of_stem(user, stem(units), Span(name, at_s, at_s + 0.5))


@dataclass
class Talk:
    """One conversation as its client holds it: every prompt begins with all that was said before."""

    user: str | None
    units: list[int]
    ids: list[str] = field(default_factory=list)


@st.composite
def _talks(draw: st.DrawFn) -> tuple[list[Talk], list[tuple[int, int]]]:
    """Conversations that may share a system prompt but open differently, and whose turn is when and by how
    much longer.
    """
    system = list(range(draw(st.integers(0, 3 * BLOCK))))
    num = draw(st.integers(1, 5))
    users = draw(st.lists(st.sampled_from([None, "ada", "bob"]), min_size=num, max_size=num))
    # The user's first words: of one length at least, and none begins with another's.
    talks = [
        Talk(user, [*system, 1000 + n, *range(draw(st.integers(0, 90)))]) for n, user in enumerate(users)
    ]
    calls = draw(st.lists(st.tuples(st.integers(0, num - 1), st.integers(1, 150)), max_size=25))
    return talks, calls


@given(_talks())
def test_every_turn_follows_the_one_before_it_in_its_conversation(
    case: tuple[list[Talk], list[tuple[int, int]]],
) -> None:
    talks, calls = case
    turns = Turns(BLOCK)
    for number, (which, growth) in enumerate(calls):
        talk = talks[which]
        turn = place(turns, f"r{number}", list(talk.units), float(number), talk.user)
        first, last = (talk.ids[0], talk.ids[-1]) if talk.ids else (f"r{number}", None)
        talk.ids.append(f"r{number}")
        assert (turn.session, turn.number, turn.after) == (first, len(talk.ids), last)
        if last is not None:
            assert turn.think_s == number - (int(last[1:]) + 0.5)
        talk.units += [2000 + number] * growth  # the answer and the next question


@given(st.lists(st.integers(0, 3), max_size=200), st.integers(0, 199), st.integers(1, 60))
def test_what_follows_begins_with_all_of_what_it_follows(units: list[int], length: int, growth: int) -> None:
    """Whatever the tokens: a link is never to a prompt that is no proper beginning."""
    earlier = units[: min(length, len(units))]
    for later in (units, units[:length] + [9] * growth):
        turn = place(turns := Turns(BLOCK), "a", earlier, 0.0)
        assert turn.number == 1
        linked = place(turns, "b", later, 1.0).after == "a"
        assert linked == (0 < len(earlier) < len(later) and later[: len(earlier)] == earlier)


def test_the_longest_beginning_is_the_turn_before() -> None:
    turns = Turns(BLOCK)
    one, two, three = (list(range(length)) for length in (100, 200, 300))
    place(turns, "a", one, 0.0)
    place(turns, "b", two, 1.0)
    assert place(turns, "c", three, 2.0) == Turn("a", 3, "b", 0.5)


def test_an_answer_asked_for_again_follows_the_same_turn_again() -> None:
    turns = Turns(BLOCK)
    place(turns, "a", list(range(100)), 0.0)
    place(turns, "b", list(range(200)), 1.0)
    assert place(turns, "c", list(range(200)), 2.0) == Turn("a", 3, "a", 1.5)


def test_a_turn_follows_only_what_had_ended_when_it_came() -> None:
    turns = Turns(BLOCK)
    turns.of_stem(None, stem(list(range(100))), Span("a", 0.0, 9.0))
    assert turns.of_stem(None, stem(list(range(200))), Span("b", 5.0, 10.0)) == Turn("b", 1)


def test_two_who_open_alike_are_followed_once_each() -> None:
    turns = Turns(BLOCK)
    for name, at_s in (("a", 0.0), ("b", 1.0)):
        place(turns, name, list(range(80)), at_s)
    followed = {place(turns, name, [*range(80), at], float(at)).after for name, at in (("c", 2), ("d", 3))}
    assert followed == {"a", "b"}


def test_a_shared_system_prompt_makes_no_conversation() -> None:
    turns = Turns(BLOCK)
    system = list(range(10 * BLOCK))
    for n in range(20):
        assert place(turns, f"r{n}", [*system, 1000 + n, *range(n)], float(n)).number == 1


def test_users_are_never_taken_for_one_another() -> None:
    turns = Turns(BLOCK)
    place(turns, "a", list(range(100)), 0.0, "ada")
    assert place(turns, "b", list(range(200)), 1.0, "bob").after is None
    assert place(turns, "c", list(range(200)), 2.0).after is None
    assert place(turns, "d", list(range(200)), 3.0, "ada").after == "a"


def test_what_comes_after_the_last_message_does_not_count() -> None:
    """A template's cue to answer need not stand where the answer's beginning stands later."""
    turns = Turns(BLOCK)
    turns.of_stem(None, stem([*range(100), 7, 7, 7], 100), Span("a", 0.0, 0.5))
    later = stem([*range(100), 8, *range(100), 7, 7, 7], 201)
    assert turns.of_stem(None, later, Span("b", 1.0, 1.5)).after == "a"


def test_a_prompt_that_says_nothing_of_its_session_stands_alone() -> None:
    turns = Turns(BLOCK)
    for name in ("a", "b"):
        assert turns.of_stem(None, stem([1, 2, 3], 0), Span(name, 0.0, 0.0)) == Turn(name, 1)
    assert len(turns) == 0


def test_text_is_compared_as_tokens_are() -> None:
    turns = Turns(256)
    place(turns, "a", "x" * 300, 0.0)
    assert place(turns, "b", "x" * 300 + "y" * 500, 1.0).after == "a"
    assert place(turns, "c", "x" * 299 + "y" * 500, 2.0).after is None


def test_named_sessions_are_taken_at_their_word() -> None:
    turns = Turns(BLOCK)
    assert turns.of_session("s", Span("a", 1.0, 3.0)) == Turn("s", 1)
    assert turns.of_session("s", Span("b", 7.0, 8.0)) == Turn("s", 2, "a", 4.0)
    # Sent while "b" ran: it follows what had ended by then.
    assert turns.of_session("s", Span("c", 7.5, 9.0)) == Turn("s", 3, "a", 4.5)
    assert turns.of_session("s", Span("d", 10.0, 11.0)) == Turn("s", 4, "c", 1.0)
    assert turns.of_session("other", Span("e", 12.0, 13.0)) == Turn("other", 1)


@pytest.mark.parametrize("max_remembered", [1, 2, 7])
def test_memory_is_bounded_and_the_oldest_go_first(max_remembered: int) -> None:
    turns = Turns(BLOCK, max_remembered)
    rng = random.Random(1)
    prompts = [[n, *(rng.randrange(9) for _ in range(rng.randrange(200)))] for n in range(50)]
    for n, prompt in enumerate(prompts):
        place(turns, f"p{n}", prompt, float(n))
        turns.of_session(f"s{n}", Span(f"n{n}", float(n), float(n)))
        assert len(turns) <= 2 * max_remembered
    newest, forgotten = 49, 49 - max_remembered
    assert turns.of_session(f"s{newest}", Span("x", 60.0, 61.0)).after == f"n{newest}"
    assert turns.of_session(f"s{forgotten}", Span("y", 60.0, 61.0)).after is None
    assert place(turns, "z", [*prompts[forgotten], 1], 70.0).after is None
    assert place(turns, "z2", [*prompts[newest], 1], 71.0).after == (
        f"p{newest}" if max_remembered > 1 else None
    )


def test_everything_of_a_forgotten_turn_is_let_go_of() -> None:
    sizes = []
    for num_turns in (10, 90):
        turns = Turns(BLOCK, 5)
        for n in range(10, 10 + num_turns):
            place(turns, f"r{n}", [n] * (50 + n), 0.0)
        sizes.append(len(pickle.dumps(turns)))
    assert sizes[1] < 1.5 * sizes[0]
