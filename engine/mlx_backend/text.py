"""Text to tokens and back: chat templates, streaming decode. Imports nothing of MLX."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Of a prompt beyond the context it would say that it leads to "indexing errors"; here it is refused.
_VERBOSE = False


class Tokenizer:
    """A model's tokenizer, shared by all streams.

    Attributes:
        eos_tokens: ids that end an answer.
        fingerprint: sha256 of its tokenizer.json; empty when it has none.
    """

    def __init__(self, tokenizer: Any, eos_tokens: Iterable[int] = (), fingerprint: str = "") -> None:
        self.fingerprint = fingerprint
        self._tokenizer = tokenizer
        own = tokenizer.eos_token_id
        self.eos_tokens = frozenset(eos_tokens) | (frozenset() if own is None else frozenset({own}))
        self._token_bytes = _byte_table(tokenizer)

    @classmethod
    def from_directory(cls, directory: Path, eos_tokens: Iterable[int] = ()) -> Tokenizer:
        """Reads the tokenizer of a model directory; `eos_tokens` are added to its own."""
        definition = directory / "tokenizer.json"
        fingerprint = hashlib.sha256(definition.read_bytes()).hexdigest() if definition.exists() else ""
        return cls(AutoTokenizer.from_pretrained(str(directory)), eos_tokens, fingerprint)

    def encode(self, text: str) -> list[int]:
        """Tokens of a plain prompt, with the special tokens the model wants around it."""
        return list(self._tokenizer.encode(text, verbose=_VERBOSE))

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation up to where the assistant's answer begins.

        Raises:
            ValueError: the model has no chat template, or its template refuses these messages.
        """
        if not self._tokenizer.chat_template:
            raise ValueError("this model has no chat template; use /v1/completions")
        try:
            tokens = self._tokenizer.apply_chat_template(
                list(messages),
                add_generation_prompt=True,
                return_dict=False,
                tokenizer_kwargs={"verbose": _VERBOSE},
            )
        except Exception as error:  # a template is a program of the model's author
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error
        return list(tokens)

    def boundaries(self, messages: Sequence[Mapping[str, Any]], tokens: Sequence[int]) -> tuple[int, ...]:
        """Token counts at which the first and the last message end in `tokens`, their encoding.

        Costs little more than rendering the template: only the first message and what follows the last
        one are encoded again. Where a template lets no message end there, or refuses the first message
        alone, the boundary is left out.
        """
        try:
            first, last = (self._render(part) for part in (messages[:1], messages))
            whole = self._render(messages, add_generation_prompt=True)
        except Exception:  # noqa: BLE001  a template is a program of the model's author
            return ()
        head = self._pieces(first) if whole.startswith(first) else []
        tail = self._pieces(whole[len(last) :]) if whole.startswith(last) else []
        return _boundaries(tokens, head, tail)

    def _render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        )

    def _pieces(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, verbose=_VERBOSE))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens, without special tokens."""
        return str(
            self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def detokenizer(self) -> ByteDetokenizer | WindowDetokenizer:
        """A fresh decoder for one stream."""
        return WindowDetokenizer(self) if self._token_bytes is None else ByteDetokenizer(self._token_bytes)


class ByteDetokenizer:
    """For byte-level vocabularies: every token is bytes, and UTF-8 is decoded as they arrive."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        known = 0 <= token < len(self._token_bytes)
        return self._decoder.decode(self._token_bytes[token]) if known else ""

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other vocabulary: decodes a short window of recent tokens and emits what it grew by.

    The window starts at a token whose text is out already, because a token's text can depend on the
    one before it (a leading space is kept or dropped).
    """

    # Tokens that may be held back. A character has at most four bytes, so at most four tokens; longer
    # runs of U+FFFD are real, and holding them would make each token cost as much as all before it.
    _MAX_HELD_TOKENS = 8

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._context: list[int] = []
        self._held: list[int] = []
        self._context_text = ""

    def push(self, token: int) -> str:
        self._held.append(token)
        text = self._decode(self._context + self._held)
        if text.endswith(REPLACEMENT) and len(self._held) < self._MAX_HELD_TOKENS:
            return ""
        return self._emit(text)

    def finish(self) -> str:
        return self._emit(self._decode(self._context + self._held)) if self._held else ""

    def _emit(self, text: str) -> str:
        fresh = text[len(self._context_text) :]
        if fresh:
            self._context, self._held = self._held, []
            self._context_text = self._decode(self._context)
        return fresh


def _boundaries(tokens: Sequence[int], head: Sequence[int], tail: Sequence[int]) -> tuple[int, ...]:
    """Where `head` ends, as far as `tokens` begin with it, and where `tail` begins, if they end with it."""
    pairs = zip(tokens, head, strict=False)
    first = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(tokens), len(head)))
    last = len(tokens) - len(tail) if list(tokens[len(tokens) - len(tail) :]) == list(tail) else 0
    return tuple(sorted({end for end in (first, last) if end > 0}))


def _byte_table(tokenizer: Any) -> list[bytes] | None:
    """The bytes of every token id, or None when the vocabulary is not byte-level."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.decoder).__name__ != "ByteLevel":
        return None
    table = [b""] * (max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
    alphabet = _byte_alphabet()
    for token, index in backend.get_vocab(with_added_tokens=True).items():
        table[index] = _token_bytes(token, alphabet)
    for index, added in backend.get_added_tokens_decoder().items():
        table[index] = b"" if added.special else added.content.encode()
    return table


def _token_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    if all(char in alphabet for char in token):
        return bytes(alphabet[char] for char in token)
    return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary.

    Source: openai/gpt-2, encoder.py: printable bytes stand for themselves, the others for the
    characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
