"""Between text and tokens: what the server needs of a tokenizer, and stop strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """

    @property
    def eos_tokens(self) -> frozenset[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn.

        Raises:
            ValueError: the model's template does not take these messages.
        """

    def detokenizer(self) -> Detokenizer: ...


class StopStrings:
    """Cuts an answer before the first of some strings, and holds back what might begin one."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that may be shown; `stopped` says whether the answer is over."""
        if not self._stops or self.stopped:
            return "" if self.stopped else text
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """What was held back of an answer that ended otherwise."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
