"""Tokenizers with chat templates, as `POST /tokenize` answers, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.synthesis.lexicon import Tokens


@dataclass(frozen=True)
class Template:
    """One token a word, but two for some; what a template puts around the messages.

    Attributes:
        long_words: are two tokens each.
        thinks: the answer's beginning that a prompt ends with is not what an answer in a prompt begins with.
        gives_ids: otherwise it only counts.
    """

    bos: tuple[str, ...] = ("<s>", "sys")
    user: tuple[str, ...] = ("<user>", "\n")
    assistant: tuple[str, ...] = ("<assistant>", "\n")
    end: tuple[str, ...] = ("<end>",)
    long_words: frozenset[str] = frozenset()
    thinks: bool = False
    gives_ids: bool = True

    def __call__(self, texts: Sequence[str]) -> Tokens:
        ids = self.ids(texts)
        return Tokens(len(ids), ids if self.gives_ids else None)

    def ids(self, texts: Sequence[str]) -> list[int]:
        pieces = list(self.bos)
        for n, text in enumerate(texts):
            pieces += (*(self.assistant if n % 2 else self.user), *self._split(text), *self.end)
        pieces += (*self.assistant, *(("<think>",) if self.thinks else ()))
        return [hash(piece) for piece in pieces]

    def _split(self, text: str) -> list[str]:
        return [part for word in text.split() for part in self._parts(word)]

    def _parts(self, word: str) -> list[str]:
        return [word[:2], "##" + word[2:]] if word in self.long_words else [word]
