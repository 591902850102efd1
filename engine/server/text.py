"""Between text and tokens: what the server needs of a tokenizer, and stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """Turns one answer's tokens into text as they come."""

    def push(self, token: int) -> str:
        """The text that is certain after this token; empty while a character is incomplete."""

    def finish(self) -> str:
        """What was held back."""


class Tokenizer(Protocol):
    """A model's tokenizer. Encoding may run on any thread.

    Attributes:
        eos_tokens: ids that end an answer.
        fingerprint: sha256 of its tokenizer.json; empty when it has none.
    """

    @property
    def eos_tokens(self) -> frozenset[int]: ...

    @property
    def fingerprint(self) -> str: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn.

        Raises:
            ValueError: the model's template does not take these messages.
        """

    def boundaries(self, messages: Sequence[Mapping[str, str]], tokens: Sequence[int]) -> tuple[int, ...]:
        """Token counts at which the first and the last message end in `tokens`, their encoding; fewer where
        they cannot be told.
        """

    def detokenizer(self) -> Detokenizer: ...


class StopStrings:
    """Lets a stream's text through up to the first stop string.

    Text that may turn out to be the beginning of a stop string is held back until it cannot be one.

    Attributes:
        stopped: a stop string was seen; it and everything after it is swallowed.

    Source: Knuth, Morris, Pratt, "Fast pattern matching in strings" (1977), one automaton a string, so
    that a token costs its length however long the strings are.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._tables = tuple(_failure_table(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Text that is now safe to send."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            if completed := self._advance(char):
                self.stopped, self._held = True, ""
                return pending[: end - completed]
        safe = len(pending) - max(self._matched)
        self._held = pending[safe:]
        return pending[:safe]

    def finish(self) -> str:
        """What was held back, when the stream ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Moves every automaton on by one character; the length of the longest stop string it ends."""
        completed = 0
        for index, (stop, table) in enumerate(zip(self._stops, self._tables, strict=True)):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = table[matched - 1]
            matched += stop[matched] == char
            self._matched[index] = matched
            if matched == len(stop):
                completed = max(completed, matched)
        return completed


def _failure_table(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper suffix that is also a prefix."""
    table, matched = [0] * len(pattern), 0
    for index in range(1, len(pattern)):
        while matched and pattern[index] != pattern[matched]:
            matched = table[matched - 1]
        matched += pattern[index] == pattern[matched]
        table[index] = matched
    return table
