from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.errors import TargetError
from loadtests.synthesis.lexicon import FIRST, Shape, Tokens, learn
from loadtests.synthesis.words import WORDS
from tests.loadtests.tokenizers import Template

TEMPLATES = [
    (Template(), Shape(head=5, tail=3, answer=1, turn=4)),
    (Template(bos=(), user=("[INST]",), assistant=(), end=("[/INST]",)), Shape(2, 1, 1, 3)),
    (Template(thinks=True), Shape(head=5, tail=4)),
    (Template(gives_ids=False), Shape(head=8, tail=0)),
]


@pytest.mark.parametrize(("template", "shape"), TEMPLATES)
def test_the_shape_of_a_template_is_measured(template: Template, shape: Shape) -> None:
    assert learn(template).shape == shape


@given(st.sets(st.sampled_from(WORDS[1:]), max_size=40))
def test_only_words_of_one_token_are_used(long_words: set[str]) -> None:
    words = learn(Template(long_words=frozenset(long_words))).words
    assert not long_words & set(words)
    assert len(words) == 256


def test_a_template_that_refuses_answers_in_the_prompt_gets_none() -> None:
    template = Template()

    def tokenize(texts: Sequence[str]) -> Tokens:
        if len(texts) > 1:
            raise TargetError("only one message")
        return template(texts)

    assert learn(tokenize).shape == Shape(head=5, tail=3)


def test_few_questions_are_asked() -> None:
    asked = []

    def tokenize(texts: Sequence[str]) -> Tokens:
        asked.append(texts)
        return Template()(texts)

    learn(tokenize)
    assert len(asked) < 10


def test_a_tokenizer_without_words_is_refused_in_one_line() -> None:
    with pytest.raises(TargetError, match="hardly any English word is one token"):
        learn(Template(long_words=frozenset(WORDS) - {FIRST}))
