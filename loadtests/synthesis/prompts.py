"""Prompts of an exact length in the target's own tokens, built before a run.

A prompt is laid out token by token: words of one token each (`lexicon`), in messages that end where the trace
wants them to (`layout`). The words of a named block follow from its name, so that equal names give equal
tokens; all others follow from the request's own seed, so that no two prompts share a prefix by accident
(which a prefix cache would turn into a shorter prompt). What the template takes of a block cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import shake_128

from loadtests.client.target import Target
from loadtests.synthesis.lexicon import FIRST, GUESSED, Lexicon, learn, tokenizer_of
from loadtests.synthesis.message_layout import Layout, Layouts
from loadtests.traffic.schedule import Schedule, ScheduledRequest

_NUM_CHECKED = 8  # prompts of a run that the target counts, and the longest of every number of messages
_CHECKERS = 4
_MAX_BLOCKS = 65536  # kept as words; a trace of hours has more than are worth keeping


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation.

    Attributes:
        messages: the user's first, in turns.
        tokens: chat template included.
    """

    messages: tuple[str, ...]
    tokens: int

    @property
    def text(self) -> str:
        """The only message of most prompts; of others what was said in all."""
        return " ".join(self.messages)


class PromptBook:
    """Makes the prompts of a target.

    Attributes:
        notes: one line for each thing that keeps the latest prompts from being what their schedule says.
    """

    def __init__(self, target: Target) -> None:
        self._tokenize = tokenizer_of(target)
        self._lexicon = learn(self._tokenize) if self._tokenize else GUESSED
        self._checked: set[int] = set()
        self._is_additive = True
        self.notes: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """The target has a tokenizer route, and counted what we counted wherever it was asked."""
        return self._tokenize is not None and self._is_additive

    def prompt(self, request: ScheduledRequest, salt: str = "") -> Prompt:
        """The prompt of a request that is sent by itself."""
        return build_prompts([request], self._lexicon, salt)[request.id]

    def prompts(self, schedule: Schedule, salt: str = "") -> dict[str, Prompt]:
        """The prompt of every request, by request id.

        Raises:
            TargetError: the target no longer answers.
        """
        layouts = Layouts(schedule.requests, self._lexicon.shape)
        made = build_prompts(schedule.requests, self._lexicon, salt, layouts)
        self._check(list(made.values()))
        self.notes = tuple(self._notes(schedule, layouts))
        return made

    def _check(self, prompts: Sequence[Prompt]) -> None:
        """Lets the target count some of them: of each kind not yet counted the longest, at first others."""
        if self._tokenize is None:
            return
        by_length = sorted(prompts, key=lambda prompt: prompt.tokens)
        kinds = {len(prompt.messages): prompt for prompt in by_length}
        chosen = [prompt for kind, prompt in kinds.items() if kind not in self._checked]
        if not self._checked:
            chosen += by_length[:: max(1, len(by_length) // _NUM_CHECKED)]
        self._checked |= set(kinds)
        tokenize = self._tokenize
        with ThreadPoolExecutor(_CHECKERS) as pool:
            counts = list(pool.map(lambda prompt: tokenize(prompt.messages).count, chosen))
        self._is_additive &= counts == [prompt.tokens for prompt in chosen]

    def _notes(self, schedule: Schedule, layouts: Layouts) -> Iterator[str]:
        laid = [(request, layouts.of(request)) for request in schedule.requests]
        lengthened = sum(layout.num_tokens > request.prompt_tokens for request, layout in laid)
        missed = sum(layout.num_missed > 0 for _, layout in laid)
        shortest = self._lexicon.shape.shortest
        if lengthened:
            yield f"{lengthened} prompts are shorter than the chat template; sent with its {shortest} tokens"
        if missed:
            yield f"{missed} prompts share a block less than recorded: the chat template leaves no room"


def build_prompts(
    requests: Sequence[ScheduledRequest], lexicon: Lexicon, salt: str = "", layouts: Layouts | None = None
) -> dict[str, Prompt]:
    """The prompts of requests that are sent together, by request id.

    Args:
        salt: another salt gives other words, so that a second run finds nothing in the server's prefix cache.
        layouts: of these requests, when they are known.
    """
    layouts = layouts or Layouts(requests, lexicon.shape)
    words = _Words(salt, lexicon.words)
    return {request.id: _prompt(request, layouts.of(request), words) for request in requests}


def _prompt(request: ScheduledRequest, layout: Layout, words: _Words) -> Prompt:
    listed = words.of(request, layout.num_tokens)
    messages = (" ".join((FIRST, *listed[start:end])) for start, end in layout.spans)
    return Prompt(tuple(messages), layout.num_tokens)


class _Words:
    """The word at every token of a prompt; those that the template takes are left out later."""

    def __init__(self, salt: str, table: Sequence[str]) -> None:
        self._salt, self._table = salt, table
        self._blocks: dict[tuple[str, int], list[str]] = {}

    def of(self, request: ScheduledRequest, num_tokens: int) -> list[str]:
        words: list[str] = []
        for name in request.prefix:
            words += self._block(name, request.prefix_block_tokens)
        own = max(0, num_tokens - len(words))
        return (words + self._stream(f"seed {request.prompt_seed}", own))[:num_tokens]

    def _block(self, name: str, num_tokens: int) -> list[str]:
        key = (name, num_tokens)
        if key not in self._blocks:
            if len(self._blocks) >= _MAX_BLOCKS:
                self._blocks.clear()
            self._blocks[key] = self._stream(f"block {name}", num_tokens)
        return self._blocks[key]

    def _stream(self, name: str, num_words: int) -> list[str]:
        """Words without end for a name; fewer of them are the first of more."""
        return [self._table[byte] for byte in shake_128(f"{self._salt}/{name}".encode()).digest(num_words)]


def bodies(
    requests: Iterable[ScheduledRequest], prompts: dict[str, Prompt], target: Target, model: str
) -> dict[str, dict[str, object]]:
    """The JSON body of every request, by request id.

    The output length is forced (`ignore_eos` and `min_tokens` with `max_tokens`), so that every config has
    the same work to do.
    """
    return {request.id: _body(request, prompts[request.id], target, model) for request in requests}


def _body(request: ScheduledRequest, prompt: Prompt, target: Target, model: str) -> dict[str, object]:
    options = {"include_usage": True} | ({} if target.foreign else {"include_timings": True})
    own: dict[str, object] = {"user": request.user} if request.user else {}
    if request.priority and not target.foreign:
        own["priority"] = request.priority
    roles = ("user", "assistant")
    return {
        "model": model,
        "messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(prompt.messages)],
        "max_tokens": request.max_tokens,
        "min_tokens": request.max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": options,
        **own,
    }
