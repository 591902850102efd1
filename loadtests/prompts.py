"""Prompts of an exact length in the target's own tokens, built before a run.

Text is seeded English-like words. Every prompt starts with words of its own seed, so no two share a
prefix by accident (which a prefix cache would turn into a shorter prompt), unless the schedule shares a
block on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from loadtests.errors import TargetError
from loadtests.schedule import Schedule, ScheduledRequest
from loadtests.target import Target, call, model_name
from loadtests.words import WORDS

_MAX_TRIES = 12
_NONCE_WORDS = 4
_FILLER = "a"  # one token after any word
_MAX_FILL = 16

TokenCounter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user message.

    Attributes:
        tokens: what the target counts for it, chat template included; the planned length when it has no
            tokenizer route.
        is_exact: counted by the target.
    """

    text: str
    tokens: int
    is_exact: bool


class PromptBook:
    """Makes and keeps the prompts of a target; `is_exact` says whether the target counts them."""

    def __init__(self, target: Target) -> None:
        self._count = _counter(target)
        self._made: dict[tuple[object, ...], Prompt] = {}

    @property
    def is_exact(self) -> bool:
        return self._count is not None

    def prompt(self, request: ScheduledRequest, salt: str = "") -> Prompt:
        """The prompt of a scheduled request; the same one for the same seed, length, blocks and salt."""
        key = (salt, request.prompt_seed, request.prompt_tokens, request.prefix)
        if key not in self._made:
            self._made[key] = build_prompt(request, self._count, salt)
        return self._made[key]

    def prompts(self, schedule: Schedule, salt: str = "") -> dict[str, Prompt]:
        """The prompt of every request, by request id. Prompts of other salts are forgotten."""
        self._made = {key: prompt for key, prompt in self._made.items() if key[0] == salt}
        return {request.id: self.prompt(request, salt) for request in schedule.requests}


def build_prompt(request: ScheduledRequest, count: TokenCounter | None, salt: str = "") -> Prompt:
    """A prompt of `request.prompt_tokens` tokens.

    Args:
        count: tokens of a user message in the target's chat template; None takes a word for a token.
        salt: another salt gives other words, so that a second run finds nothing in the server's prefix cache.

    When the template alone is longer than the request, or a word boundary cannot be hit, the nearest
    length reached is returned: `Prompt.tokens` says which.
    """
    head = [word for name in request.prefix for word in _block(name, request.prefix_block_tokens, salt)]
    rng = random.Random(f"{salt}/{request.prompt_seed}")
    words = head + _nonce(rng) + rng.choices(WORDS, k=request.prompt_tokens)
    if count is None:
        return Prompt(" ".join(words[: request.prompt_tokens]), request.prompt_tokens, is_exact=False)
    return _fit(words, request.prompt_tokens, count)


def _block(name: str, num_tokens: int, salt: str) -> list[str]:
    """The words of a shared block: equal for equal names, about `num_tokens` tokens."""
    return random.Random(f"{salt}/block {name}").choices(WORDS, k=num_tokens)


def _nonce(rng: random.Random) -> list[str]:
    return [word.capitalize() for word in rng.choices(WORDS, k=_NONCE_WORDS)]


def _fit(words: list[str], wanted: int, count: TokenCounter) -> Prompt:
    """Moves the number of words by the tokens still missing; the last few are filled up one by one."""
    best: Prompt | None = None
    num_words, num_fill = max(wanted, _NONCE_WORDS), 0
    for _ in range(_MAX_TRIES):
        text = " ".join(words[:num_words] + [_FILLER] * num_fill)
        tokens = count(text)
        if best is None or abs(tokens - wanted) < abs(best.tokens - wanted):
            best = Prompt(text, tokens, is_exact=True)
        missing = wanted - tokens
        if missing == 0 or (missing < 0 and num_words == _NONCE_WORDS):
            break
        if 0 < missing <= _MAX_FILL:
            num_fill += missing
        else:
            num_words, num_fill = min(max(num_words + missing, _NONCE_WORDS), len(words)), 0
    assert best is not None
    return best


def _counter(target: Target) -> TokenCounter | None:
    """Counts through the target's `POST /tokenize`; None when it has no such route."""
    model = model_name(target)

    def count(text: str) -> int:
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        status, answer = call(target, "POST", "/tokenize", body)
        if status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("count"), int):
            raise TargetError(f"{target.url}/tokenize gave no count (HTTP {status})")
        return int(answer["count"])

    try:
        count("Hello")
    except TargetError:
        return None
    return count


def bodies(
    requests: Iterable[ScheduledRequest], prompts: dict[str, Prompt], target: Target, model: str
) -> dict[str, dict[str, object]]:
    """The JSON body of every request, by request id.

    The output length is forced (`ignore_eos` and `min_tokens` with `max_tokens`), so that every config has
    the same work to do.
    """
    return {request.id: _body(request, prompts[request.id].text, target, model) for request in requests}


def _body(request: ScheduledRequest, text: str, target: Target, model: str) -> dict[str, object]:
    options = {"include_usage": True} | ({} if target.foreign else {"include_timings": True})
    own = {"priority": request.priority} if request.priority and not target.foreign else {}
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": request.max_tokens,
        "min_tokens": request.max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": options,
        **own,
    }
