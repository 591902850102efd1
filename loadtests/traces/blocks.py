"""Names of prefix blocks: as numbers, in blocks of another size, and made up for turns that grow."""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from typing import Any

from engine.core.trace import TraceHeader, TraceRow
from loadtests.traces.fixes import Notes
from loadtests.traces.source import Source


def number_of(name: str) -> int:
    """A name as a number, where a format has only those: itself if it is one, else 48 bits of its hash."""
    if name.isascii() and name.isdecimal() and (name == "0" or name[0] != "0"):
        return int(name)
    return int.from_bytes(blake2b(name.encode(), digest_size=6).digest(), "big")


def regroup(prefix: tuple[str, ...], num_tokens: int, old: int, new: int) -> tuple[str, ...] | None:
    """The same sharing told in blocks of `new` tokens; None when neither size divides the other.

    Larger blocks are named by all blocks inside them, so that two are equal only when they are equal
    throughout. The last block is partial only where the old ones reach the prompt's end.

    Args:
        num_tokens: of the prompt.
        old: 0 when nobody knows how many.
    """
    if old == new or not prefix:
        return prefix
    if not old:
        return None
    if new % old == 0:
        size = new // old
        known = len(prefix) if len(prefix) * old >= num_tokens else len(prefix) // size * size
        return tuple(_joined(prefix[start : min(start + size, known)]) for start in range(0, known, size))
    if old % new == 0:
        parts = (f"{name}.{part}" for name in prefix for part in range(old // new))
        return tuple(islice(parts, -(-num_tokens // new)))
    return None


def cannot_regroup(header: TraceHeader, new: int) -> str:
    """The note for rows that `regroup` gave up."""
    old = (
        f"{header.block} tokens"
        if header.block
        else f"{header.text_block or 'who knows how many'} characters"
    )
    return f"values of prefix left out: blocks of {old} cannot be told in blocks of {new} tokens"


def covering(prefix: tuple[str, ...], num_tokens: int, block: int, own: str) -> tuple[str, ...]:
    """Blocks for the whole prompt: what lies beyond the named ones shares nothing with anybody.

    Args:
        own: a name that no other request has.
    """
    needed = -(-num_tokens // block)
    return prefix[:needed] + tuple(f"{own}/{number}" for number in range(len(prefix), needed))


def _joined(names: tuple[str, ...]) -> str:
    return blake2b("\n".join(names).encode(), digest_size=6).hexdigest()


class GrowingPrompts:
    """Names the prefix blocks of a session's turns, each of which begins with what the one before began with.

    Args:
        given: names of the blocks of a turn before the first one asked for, where they are known.
    """

    def __init__(self, session: str, block_tokens: int, given: tuple[str, ...] = ()) -> None:
        self._session, self._block, self._names = session, block_tokens, given
        self._turn = 0

    def turn(self, prompt_tokens: int, shared_tokens: int) -> tuple[str, ...]:
        """The next turn's blocks, whole ones only.

        Args:
            shared_tokens: of the prompt, that the turn before has in front too.
        """
        kept = self._names[: shared_tokens // self._block]
        blocks = range(len(kept), prompt_tokens // self._block)
        self._turn += 1
        self._names = kept + tuple(f"{self._session}:{self._turn}:{block}" for block in blocks)
        return self._names


def numbered(row: TraceRow, header: TraceHeader, block: int, notes: Notes) -> list[int]:
    """The blocks of the whole prompt, `block` tokens each, as numbers; none when they cannot be told."""
    if not row.prefix:
        return []
    names = regroup(row.prefix, row.prompt_tokens, header.block, block)
    if names is None:
        notes.count(cannot_regroup(header, block))
        return []
    return [number_of(name) for name in covering(names, row.prompt_tokens, block, row.id)]


def names_of(source: Source, number: int, ids: Any) -> tuple[str, ...]:
    """The block names in a JSON row's `hash_ids`.

    Raises:
        TraceError: not a list of numbers or texts.
    """
    if ids is None:
        return ()
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int, str}:
        source.fail(number, "hash_ids", "a list of block hashes", ids)
    return tuple(map(str, ids))
