"""What a target's tokenizer makes of words and of conversations, learnt with a few requests.

Prompts of an exact length are laid out in tokens, not searched for: they are made of words that are one token
each under the target's own tokenizer, between the tokens its chat template adds, which are measured once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.client.target import Target, call, model_name
from loadtests.errors import TargetError
from loadtests.synthesis.words import WORDS

# Begins every message. A word at the beginning of a message has no blank before it, which makes another token
# of it (or several), so it is always the same one and counts as part of the template.
FIRST = WORDS[0]
_TABLE = 256  # a word for every value of a byte
_PROBE = 3  # words in a probed message, and by how many more a longer one differs


@dataclass(frozen=True, slots=True)
class Tokens:
    """An encoded prompt; `ids` is None when the target only counts."""

    count: int
    ids: Sequence[int] | None = None


# The texts of a conversation's messages, the user's first, in turns.
Tokenize = Callable[[Sequence[str]], Tokens]


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of the chat template around the words of a conversation, each with its message's first word.

    Attributes:
        head: before the words of the first message.
        tail: after the last message's words, to where the answer begins.
        answer, turn: before the words of an answer in the prompt, and of the user's message after it. A
            prompt with its answer and a further message begins with exactly that prompt's tokens. None
            when the template does something else, or the target gives no ids: every prompt is one message.
    """

    head: int
    tail: int
    answer: int | None = None
    turn: int | None = None

    @property
    def has_turns(self) -> bool:
        """A prompt may hold an earlier one."""
        return self.answer is not None and self.turn is not None

    @property
    def shortest(self) -> int:
        """Tokens of the shortest prompt there is."""
        return self.head + self.tail


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Words of one token each, between the tokens of `shape`.

    Attributes:
        words: as many as a byte has values (some of them twice if need be).
    """

    words: tuple[str, ...]
    shape: Shape


# Of a target that does not tell: a word is taken for a token.
GUESSED = Lexicon((WORDS * 2)[:_TABLE], Shape(head=1, tail=0))


def tokenizer_of(target: Target) -> Tokenize | None:
    """The target's `POST /tokenize`; None when it has no such route."""
    model = model_name(target)

    def tokenize(texts: Sequence[str]) -> Tokens:
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
        body = {"model": model, "messages": messages, "return_ids": True}
        status, answer = call(target, "POST", "/tokenize", body)
        if status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("count"), int):
            raise TargetError(f"{target.url}/tokenize gave no count (HTTP {status})")
        ids = answer.get("tokens")
        return Tokens(int(answer["count"]), ids if isinstance(ids, list) else None)

    try:
        tokenize(["Hello"])
    except TargetError:
        return None
    return tokenize


def learn(tokenize: Tokenize) -> Lexicon:
    """Finds words of one token each, and the shape of the chat template.

    A few requests when all of `WORDS` are; about twice the logarithm of their number for each that is not.

    Raises:
        TargetError: the tokenizer has hardly any of them.
    """
    bare = tokenize([FIRST]).count
    words = _single(WORDS[1:], lambda some: tokenize([_message(some)]).count - bare == len(some))
    if len(words) < _PROBE * 4:
        raise TargetError("hardly any English word is one token of this model; prompts cannot be made for it")
    return Lexicon(tuple((words * _TABLE)[:_TABLE]), _shape(tokenize, words))


def _message(words: Sequence[str]) -> str:
    return " ".join((FIRST, *words))


def _single(words: tuple[str, ...], all_single: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Those words that are one token each, found by halving."""
    if not words or all_single(words):
        return words
    if len(words) == 1:
        return ()
    half = len(words) // 2
    return _single(words[:half], all_single) + _single(words[half:], all_single)


def _shape(tokenize: Tokenize, words: Sequence[str]) -> Shape:
    """Measured where longer conversations part from shorter ones."""
    few, others = words[:_PROBE], words[_PROBE : 3 * _PROBE]
    short, long = tokenize([_message(few)]), tokenize([_message((*few, *others))])
    if short.ids is None or long.ids is None:
        return Shape(head=short.count - _PROBE, tail=0)
    ends = _common(short.ids, long.ids)
    shape = Shape(head=ends - _PROBE, tail=short.count - ends)
    return _with_turns(shape, short.ids, tokenize, few, others)


def _with_turns(
    shape: Shape, prompt: Sequence[int], tokenize: Tokenize, few: Sequence[str], others: Sequence[str]
) -> Shape:
    try:
        short, long = (
            tokenize([_message(few), _message(answer), _message(few)]) for answer in (few, (*few, *others))
        )
    except TargetError:  # a template may refuse anything
        return shape
    if short.ids is None or long.ids is None or short.ids[: len(prompt)] != prompt:
        return shape
    ends = _common(short.ids, long.ids)
    answer = ends - len(prompt) - _PROBE
    turn = short.count - ends - _PROBE - shape.tail
    return Shape(shape.head, shape.tail, answer, turn) if answer >= 0 and turn >= 0 else shape


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
