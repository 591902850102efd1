from hypothesis import given
from hypothesis import strategies as st

from loadtests.prompts import PromptBook, bodies, build_prompt
from loadtests.schedule import ScheduledRequest
from loadtests.scripted import ScriptedServer
from loadtests.target import Target


def request(tokens: int = 100, seed: int = 1, **fields: object) -> ScheduledRequest:
    values = {"id": "r", "at_s": 0.0, "prompt_tokens": tokens, "max_tokens": 9, "prompt_seed": seed} | fields
    return ScheduledRequest(**values)  # type: ignore[arg-type]


def one_each(text: str) -> int:
    return len(text.split()) + 12


def long_words_are_two(text: str) -> int:
    return sum(1 + (len(word) > 5) for word in text.split()) + 30


@given(st.integers(40, 3000), st.integers(0, 1 << 40))
def test_prompts_have_exactly_the_planned_tokens(tokens: int, seed: int) -> None:
    prompt = build_prompt(request(tokens, seed), one_each)
    assert (prompt.tokens, one_each(prompt.text), prompt.is_exact) == (tokens, tokens, True)


@given(st.integers(60, 2000), st.integers(0, 1 << 40))
def test_words_of_two_tokens_do_not_keep_a_prompt_from_its_length(tokens: int, seed: int) -> None:
    prompt = build_prompt(request(tokens, seed), long_words_are_two)
    assert prompt.tokens == tokens == long_words_are_two(prompt.text)


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_prompts_share_no_prefix_by_accident(a: int, b: int) -> None:
    first, second = (build_prompt(request(seed=seed), one_each).text.split()[:4] for seed in (a, b))
    assert (first == second) == (a == b)


def test_another_salt_gives_other_words_of_the_same_length() -> None:
    plain, salted = (build_prompt(request(), one_each, salt) for salt in ("", "x"))
    assert plain.text.split()[:4] != salted.text.split()[:4]
    assert plain.tokens == salted.tokens


def test_shared_blocks_are_shared_text_and_the_rest_is_not() -> None:
    blocks = {"prefix": ("sys", "doc"), "prefix_block_tokens": 30}
    first, second = (build_prompt(request(seed=seed, **blocks), one_each).text.split() for seed in (1, 2))
    assert first[:60] == second[:60]
    assert first[60:64] != second[60:64]


def test_a_prompt_shorter_than_the_template_is_as_short_as_can_be() -> None:
    assert build_prompt(request(3), one_each).tokens == 16


def test_the_target_counts_when_it_can() -> None:
    with ScriptedServer({}) as server:
        book = PromptBook(Target(server.url))
        assert book.is_exact
        assert book.prompt(request()).tokens == 100


def test_without_a_tokenizer_route_lengths_are_approximate_and_say_so() -> None:
    with ScriptedServer({}, has_tokenizer=False) as server:
        book = PromptBook(Target(server.url))
    assert not book.is_exact
    assert len(book.prompt(request()).text.split()) == 100


def test_a_body_forces_its_output_length_and_streams() -> None:
    prompt = {"r": build_prompt(request(), one_each)}
    own = bodies([request()], prompt, Target("http://h"), "m")["r"]
    assert own["max_tokens"] == own["min_tokens"] == 9
    assert own["ignore_eos"] is True
    assert own["stream"] is True
    assert own["stream_options"] == {"include_usage": True, "include_timings": True}
    foreign = bodies([request()], prompt, Target("http://h", foreign=True), "m")["r"]
    assert foreign["stream_options"] == {"include_usage": True}
