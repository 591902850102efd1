"""How much of the prompts a prefix cache that never forgets would hold, in bounded memory.

Every block name is remembered until there are too many; from then on only names of a part of the hash space
are, half of it each time. A share taken over that part estimates the share over all (spatial sampling, after
SHARDS: Waldspurger et al., FAST 2015); its standard error is taken from eight parts of the sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat, takewhile
from statistics import stdev
from zlib import adler32, crc32

_MAX_NAMES = 1 << 20  # about 100 bytes each
_PARTS = 8
_MIX, _LOW = 0x85EBCA6B, 0xFFFFFFFF  # multiplicative hashing, in 32 bits


class PrefixReuse:
    """Rows come in the order in which they would be sent.

    Args:
        block_tokens: tokens of a block; 0 when nobody knows: then all of a prompt's are as long.
        max_names: how many names are remembered.

    Attributes:
        num_rows: that had a prefix.
        one_in: of so many names one is remembered by now.
    """

    def __init__(self, block_tokens: int, max_names: int = _MAX_NAMES) -> None:
        self.block_tokens = block_tokens
        self.num_rows = 0
        self.one_in = 1
        self._max_names = max_names
        self._are_numbers = True
        self._seen: set[int] = set()
        self._shared_rows = 0
        self._exact_tokens = 0.0
        self._sampled_tokens = [0.0] * _PARTS

    @property
    def hit_tokens(self) -> float:
        """Prompt tokens that had been in front of an earlier prompt."""
        return self._exact_tokens + sum(self._sampled_tokens)

    @property
    def error_tokens(self) -> float:
        """Standard error of `hit_tokens`; 0 when nothing had to be forgotten."""
        return stdev(self._sampled_tokens) * math.sqrt(_PARTS)

    @property
    def shared_rows(self) -> int:
        """Rows whose first block had come before."""
        return self._shared_rows

    def add(self, prefix: tuple[str, ...], prompt_tokens: int) -> None:
        """A row's blocks, from the front."""
        self.num_rows += 1
        keys = self._keys(prefix)
        if keys[0] in self._seen:
            self._shared_rows += self.one_in
        block = self.block_tokens or prompt_tokens / len(keys)
        if self.one_in > 1:
            keys = self._sampled(keys)
        num_known = len(list(takewhile(self._seen.__contains__, keys)))
        if self.one_in == 1:
            self._exact_tokens += min(num_known * block, prompt_tokens)
        else:
            for key in keys[:num_known]:
                part = (key * _MIX & _LOW) * self.one_in * _PARTS >> 32
                self._sampled_tokens[part] += self.one_in * block
        self._seen.update(keys[num_known:])
        if len(self._seen) > self._max_names:
            self._halve()

    def _keys(self, names: tuple[str, ...]) -> list[int]:
        """A number for each; hashes are numbers already, written in hexadecimal as a rule."""
        if not self._are_numbers:
            return list(map(_key, names))
        try:
            return list(map(int, names, repeat(16)))
        except ValueError:
            self._are_numbers = False
            return self._keys(names)

    def _sampled(self, keys: Iterable[int]) -> list[int]:
        """Those whose mixed low bits are small: numbers in a row must not be sampled in step."""
        limit = (_LOW + 1) // self.one_in
        return [key for key in keys if (key * _MIX & _LOW) < limit]

    def _halve(self) -> None:
        self.one_in *= 2
        self._seen = set(self._sampled(self._seen))


def _key(name: str) -> int:
    if name.isalnum():
        with suppress(ValueError):
            return int(name, 16)
    raw = name.encode()
    return crc32(raw) | adler32(raw) << 32
