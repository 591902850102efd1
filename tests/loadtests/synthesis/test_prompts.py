from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sim_backend import WordTokenizer
from loadtests.client.target import Target
from loadtests.selftest.scripted_server import ScriptedServer
from loadtests.synthesis.lexicon import Lexicon, Tokenize, Tokens, learn
from loadtests.synthesis.message_layout import Layouts
from loadtests.synthesis.prompts import Prompt, PromptBook, bodies, build_prompts
from loadtests.traffic.schedule import Schedule, ScheduledRequest
from tests.loadtests.tokenizers import Template

BLOCK = 40  # more than the templates take of one


def simulated(texts) -> Tokens:
    roles = ("user", "assistant")
    ids = WordTokenizer().encode_chat(
        [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    )
    return Tokens(len(ids), ids)


TOKENIZERS: list[Tokenize] = [
    Template(),
    Template(end=("<end>", "\n", "\n", "\n", "\n", "\n")),
    Template(thinks=True),
    simulated,
]


def request(tokens: int = 100, seed: int = 1, **fields: object) -> ScheduledRequest:
    values = {"id": "r", "at_s": 0.0, "prompt_tokens": tokens, "max_tokens": 9, "prompt_seed": seed} | fields
    return ScheduledRequest(**values)  # type: ignore[arg-type]


def built(requests: Iterable[ScheduledRequest], lexicon: Lexicon, salt: str = "") -> dict[str, Prompt]:
    return build_prompts(list(requests), lexicon, salt)


def prompt(one: ScheduledRequest, salt: str = "") -> Prompt:
    return built([one], learn(Template()), salt)["r"]


def common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


@given(st.sampled_from(TOKENIZERS), st.integers(20, 3000), st.integers(0, 1 << 40))
def test_prompts_have_exactly_the_planned_tokens(tokenize, tokens: int, seed: int) -> None:
    made = built([request(tokens, seed)], learn(tokenize))["r"]
    assert made.tokens == tokenize(made.messages).count == tokens


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_prompts_share_no_prefix_by_accident(a: int, b: int) -> None:
    first, second = (prompt(request(seed=seed)).text.split() for seed in (a, b))
    assert (first[:12] == second[:12]) == (a == b)


def test_another_salt_gives_other_words_of_the_same_length() -> None:
    plain, salted = (prompt(request(), salt) for salt in ("", "x"))
    assert plain.text.split()[:12] != salted.text.split()[:12]
    assert plain.tokens == salted.tokens


def test_a_prompt_shorter_than_the_template_is_as_short_as_can_be() -> None:
    assert prompt(request(3)).tokens == 8


# A trie of blocks: paths that begin alike, prompts of every length over them.
PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=6)
TRACES = st.lists(st.tuples(PATHS, st.integers(1, BLOCK)), min_size=1, max_size=12)


@given(st.sampled_from(TOKENIZERS), TRACES)
def test_equal_block_hashes_are_equal_tokens_and_others_are_not(tokenize, trace) -> None:
    lexicon = learn(tokenize)
    requests = [traced(n, path, last) for n, (path, last) in enumerate(trace)]
    layouts = Layouts(requests, lexicon.shape)
    made = {
        one.id: tokenize(p.messages).ids
        for one, p in zip(requests, built(requests, lexicon).values(), strict=True)
    }
    exact = [
        r for r in requests if not layouts.of(r).num_missed and r.prompt_tokens >= lexicon.shape.shortest
    ]
    for one in exact:
        assert len(made[one.id]) == one.prompt_tokens
        for other in exact:
            same = common_names(one, other)
            shared = common(made[one.id], made[other.id])
            assert shared >= min(same * BLOCK, one.prompt_tokens, other.prompt_tokens)
            longest = max(one.prompt_tokens, other.prompt_tokens)
            # The template's own tokens, at the front of every prompt, cannot differ.
            if one.prefix != other.prefix and (same + 1) * BLOCK > lexicon.shape.head and longest > shared:
                assert shared < (same + 1) * BLOCK


def traced(n: int, path: list[str], last: int) -> ScheduledRequest:
    """A prompt over chained block names, the last block filled with `last` tokens."""
    names = ["/".join(path[: k + 1]) for k in range(len(path))]
    if last < BLOCK:
        names[-1] += f"#{last}"
    tokens = (len(path) - 1) * BLOCK + last
    return request(tokens, n, id=f"r{n}", prefix=tuple(names), prefix_block_tokens=BLOCK)


def common_names(one: ScheduledRequest, other: ScheduledRequest) -> int:
    pairs = enumerate(zip(one.prefix, other.prefix, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one.prefix), len(other.prefix)))


@given(
    st.sampled_from([Template(), simulated]),
    st.integers(20, 90),
    st.lists(st.tuples(st.integers(1, 40), st.integers(8, 50)), min_size=1, max_size=6),
)
def test_a_later_turn_begins_with_the_earlier_prompt_to_its_last_token(tokenize, first: int, turns) -> None:
    lexicon = learn(tokenize)
    lengths = [(first, turns[0][0])]
    for answer, new in turns:
        lengths.append((lengths[-1][0] + answer + new, answer))
    names = tuple(f"s{k}" for k in range(lengths[-1][0] // BLOCK + 1))
    requests = [
        request(
            tokens, n, id=f"t{n}", max_tokens=answer, after=f"t{n - 1}" if n else None,
            prefix=names[: -(-tokens // BLOCK)], prefix_block_tokens=BLOCK,
        )
        for n, (tokens, answer) in enumerate(lengths)
    ]  # fmt: skip
    made = built(requests, lexicon)
    for n in range(1, len(requests)):
        earlier, later = (tokenize(made[f"t{k}"].messages).ids for k in (n - 1, n))
        assert later[: len(earlier)] == earlier
        assert len(later) == requests[n].prompt_tokens
        assert len(made[f"t{n}"].messages) == 2 * n + 1


def test_where_the_template_leaves_no_room_the_book_says_so() -> None:
    inside = traced(0, ["a", "b"], BLOCK)
    tight = dataclasses.replace(traced(1, ["a", "b", "c"], 3), id="tight")
    layouts = Layouts([inside, tight], learn(Template()).shape)
    assert (layouts.of(inside).num_missed, layouts.of(tight).num_missed) == (0, 1)


def test_the_target_counts_when_it_can() -> None:
    with ScriptedServer({}) as server:
        book = PromptBook(Target(server.url))
        made = book.prompts(schedule([request()]))
    assert book.is_exact
    assert (made["r"].tokens, book.notes) == (100, ())


def test_prompts_that_cannot_be_short_enough_are_said() -> None:
    with ScriptedServer({}) as server:
        book = PromptBook(Target(server.url))
        made = book.prompts(schedule([request(3)]))
    assert made["r"].tokens == 5
    assert book.notes == ("1 prompts are shorter than the chat template; sent with its 5 tokens",)


def test_a_target_that_counts_otherwise_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer({}) as server:
        book = PromptBook(Target(server.url))
        monkeypatch.setattr("loadtests.selftest.scripted_server._TEMPLATE_TOKENS", 9)
        book.prompts(schedule([request()]))
    assert not book.is_exact


def test_without_a_tokenizer_route_lengths_are_approximate_and_say_so() -> None:
    with ScriptedServer({}, has_tokenizer=False) as server:
        book = PromptBook(Target(server.url))
    assert not book.is_exact
    assert len(book.prompt(request()).text.split()) == 100


def schedule(requests: list[ScheduledRequest]) -> Schedule:
    return Schedule(
        name="t", seed=0, requests=tuple(requests), duration_s=1.0, grace_s=1.0, long_prompt_tokens=900
    )


def test_a_body_forces_its_output_length_and_streams() -> None:
    prompts = {"r": prompt(request())}
    own = bodies([request(user="u", priority=2)], prompts, Target("http://h"), "m")["r"]
    assert own["max_tokens"] == own["min_tokens"] == 9
    assert own["ignore_eos"] is True
    assert own["stream"] is True
    assert own["stream_options"] == {"include_usage": True, "include_timings": True}
    assert (own["user"], own["priority"]) == ("u", 2)
    foreign = bodies([request(priority=2)], prompts, Target("http://h", foreign=True), "m")["r"]
    assert foreign["stream_options"] == {"include_usage": True}
    assert "priority" not in foreign


def test_the_messages_of_a_conversation_take_turns() -> None:
    made = {"r": Prompt(("one", "two", "three"), 9)}
    messages = bodies([request()], made, Target("http://h"), "m")["r"]["messages"]
    assert messages == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
