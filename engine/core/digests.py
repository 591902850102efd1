"""Digests of a prompt's prefixes: what two prompts have in common, without comparing their tokens."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b

# Prefixes are told apart at multiples of this many tokens. One digest a block: 100,000 tokens take a few
# milliseconds, and a prompt that shares a prefix reads less than a block of it again.
BLOCK_TOKENS = 32

_TOKEN_BYTES = 8
_DIGEST_BYTES = 16  # no two prompts share one by accident, nor on purpose


class PromptDigests:
    """Digests of a prompt's prefixes: of every whole block at once, of other lengths when asked for."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.num_tokens = len(prompt)
        self._tokens = array("q", prompt).tobytes()
        self._blocks = [b""]
        for end in range(BLOCK_TOKENS, self.num_tokens + 1, BLOCK_TOKENS):
            self._blocks.append(self._extend(self._blocks[-1], end - BLOCK_TOKENS, end))
        self._others: dict[int, bytes] = {}

    def at(self, num_tokens: int) -> bytes:
        """The digest of the first `num_tokens` tokens; equal digests mean equal tokens."""
        block, rest = divmod(num_tokens, BLOCK_TOKENS)
        if not rest:
            return self._blocks[block]
        if num_tokens not in self._others:
            self._others[num_tokens] = self._extend(self._blocks[block], num_tokens - rest, num_tokens)
        return self._others[num_tokens]

    def common_tokens(self, other: PromptDigests) -> int:
        """Tokens, in whole blocks, that both prompts begin with."""
        shorter = min(len(self._blocks), len(other._blocks))
        differs = bisect_left(range(shorter), True, key=lambda b: self._blocks[b] != other._blocks[b])
        return (differs - 1) * BLOCK_TOKENS

    def _extend(self, before: bytes, start: int, end: int) -> bytes:
        tokens = self._tokens[start * _TOKEN_BYTES : end * _TOKEN_BYTES]
        return blake2b(before + tokens, digest_size=_DIGEST_BYTES).digest()


def whole_blocks(num_tokens: int) -> int:
    """The largest multiple of a block that is at most `num_tokens`."""
    return num_tokens - num_tokens % BLOCK_TOKENS
