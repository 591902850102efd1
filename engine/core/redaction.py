"""What a trace keeps of names and prompts: pseudonyms and hashes that mean nothing without their salt."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

# Small enough to tell short shared prefixes apart, large enough that a long prompt's row stays small
# (32,000 tokens: 8 kB).
BLOCK_TOKENS = 64
# About as long, for prompts whose tokens nobody counted.
BLOCK_CHARS = 256
_HASH_BYTES = 6


class Redactor:
    """Hashes under one salt: equal prompts and names get equal hashes in one recording, and in no other.

    Args:
        salt: at least 16 random bytes, kept in memory alone: without it nobody can try out names or prompts.
    """

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self.salt_id = blake2b(salt, digest_size=4).hexdigest()

    def pseudonym(self, *names: str) -> str:
        """Stands for a name, or for several together."""
        return self._keyed("\0".join(names).encode(errors="surrogatepass")).hexdigest()

    def hashes(self, prompt: Sequence[int] | str) -> Iterator[str]:
        """One hash a block, the last of which may be partial; each of everything up to its block's end, so
        that equal hashes mean equal prefixes. Made one by one as they are asked for.
        """
        block = BLOCK_CHARS if isinstance(prompt, str) else BLOCK_TOKENS
        running = self._keyed()
        for start in range(0, len(prompt), block):
            running.update(_bytes(prompt[start : start + block]))
            yield running.copy().hexdigest()

    def _keyed(self, data: bytes = b"") -> blake2b:
        return blake2b(data, key=self._salt, digest_size=_HASH_BYTES)


def _bytes(units: Sequence[int] | str) -> bytes:
    if isinstance(units, str):
        return units.encode(errors="surrogatepass")
    return array("q", units).tobytes()
