"""Which checkpoints there are, what they take, which one a prompt may start from, which one goes next.

Values only: the snapshots themselves are the executor's, which takes and drops them as plans say. A
checkpoint holds the caches of a prefix at exactly its token count. It builds on the longest checkpoint of
a shorter prefix: layers that keep every token store only what the longer one adds, as in a radix tree
(source: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024). So a
conversation takes its length once, not once a turn, and what others build on cannot go before they do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.core.digests import BLOCK_TOKENS, PromptDigests, whole_blocks
from engine.core.executor import CheckpointSizes

# Checkpoints that nobody shared yet may fill this share before they are evicted ahead of shared ones.
# Source: segmented LRU, Karedla, Love and Wherry, "Caching strategies to improve disk system performance",
# 1994.
_ONE_OFF_SHARE = 0.2

# However small they are, their bookkeeping is not nothing.
_MAX_CHECKPOINTS = 16384


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A prefix whose caches are held.

    Attributes:
        blocks: digests at the ends of blocks among its own tokens, those that are not its parent's.
        home: digest at the end of the last block that its prefix fills.
        parent: the checkpoint it builds on; None when it holds the prefix from its first token.
        shared: another prompt starts, or will start, from it or from one that builds on it.
    """

    id: int
    num_tokens: int
    digest: bytes
    blocks: tuple[bytes, ...]
    home: bytes
    num_bytes: int
    parent: Checkpoint | None
    shared: bool
    num_children: int = 0

    def chain(self) -> Iterator[Checkpoint]:
        """Itself, its parent, and so on to the shortest."""
        link: Checkpoint | None = self
        while link:
            yield link
            link = link.parent


@dataclass(frozen=True, slots=True)
class Hit:
    """A prompt may start from this checkpoint's first `num_tokens` tokens."""

    checkpoint: Checkpoint
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Added:
    """A new checkpoint, and the ids of those that had to go for it."""

    checkpoint: Checkpoint
    evicted: tuple[int, ...]


@dataclass(slots=True)
class _Block:
    """The end of a block that some checkpoint reaches.

    Attributes:
        holders: checkpoints whose own tokens include this block's last, by id.
        ends: checkpoints that end here or before the next block does, by their digest.
    """

    holders: dict[int, Checkpoint] = field(default_factory=dict)
    ends: dict[bytes, Checkpoint] = field(default_factory=dict)


class PrefixIndex:
    """Every checkpoint there is. Their bytes together never exceed `max_bytes`.

    Attributes:
        version: changes whenever a prompt might be answered otherwise.
        num_evictions: checkpoints that went to make room.
    """

    def __init__(self, sizes: CheckpointSizes, max_bytes: int) -> None:
        self.num_bytes = 0
        self.num_evictions = 0
        self.version = 0
        self._sizes = sizes
        self._max_bytes = max_bytes
        self._last_id = 0
        self._one_off_bytes = 0
        # Each from the longest unused to the latest used.
        self._one_off: OrderedDict[int, Checkpoint] = OrderedDict()
        self._shared: OrderedDict[int, Checkpoint] = OrderedDict()
        self._blocks: dict[bytes, _Block] = {b"": _Block()}

    def __len__(self) -> int:
        return len(self._one_off) + len(self._shared)

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    def find(self, digests: PromptDigests, max_tokens: int) -> Hit | None:
        """The longest held prefix of a prompt, `max_tokens` at most."""
        hit: Hit | None = None
        for num_tokens, block in self._walk(digests, max_tokens):
            if self._sizes.divisible and block.holders:
                hit = Hit(next(reversed(block.holders.values())), num_tokens)
            if end := _longest_end(block, digests, max_tokens):
                hit = Hit(end, end.num_tokens)
        return hit

    def use(self, hit: Hit) -> None:
        """Notes that a prompt starts from the hit."""
        self._touch(hit.checkpoint)

    def fits(self, digests: PromptDigests, num_tokens: int) -> bool:
        """Whether a checkpoint of this prefix could be held, others gone if need be."""
        parent = self._longest(digests, num_tokens)
        held = sum(checkpoint.num_bytes for checkpoint in parent.chain()) if parent else 0
        return held + self._size(parent, num_tokens) <= self._max_bytes

    def add(self, digests: PromptDigests, num_tokens: int, shared: bool = False) -> Added | None:
        """Makes room for a checkpoint and enters it; None when it is there already or can never fit.

        Args:
            shared: others are known to start from it.
        """
        parent = self._longest(digests, num_tokens)
        if (parent and parent.num_tokens == num_tokens) or not self.fits(digests, num_tokens):
            return None
        num_bytes = self._size(parent, num_tokens)
        if parent:
            parent.num_children += 1  # from here on it cannot be evicted, nor can those it builds on
            if shared:
                self._touch(parent)
        evicted = self._make_room(num_bytes, 0 if shared else num_bytes)
        made = self._enter(digests, num_tokens, num_bytes, parent, shared)
        return Added(made, evicted)

    def resize(self, max_bytes: int) -> tuple[int, ...]:
        """Changes the bound; returns the ids of those that had to go."""
        self._max_bytes = max_bytes
        self.version += 1
        return self._make_room(0, 0)

    # -- finding -------------------------------------------------------------------------------------

    def _walk(self, digests: PromptDigests, max_tokens: int) -> Iterator[tuple[int, _Block]]:
        """Every held block that the prompt begins with, shortest first.

        There are no gaps: what a checkpoint builds on is held as long as it is.
        """
        for num_tokens in range(0, min(max_tokens, digests.num_tokens) + 1, BLOCK_TOKENS):
            block = self._blocks.get(digests.at(num_tokens))
            if block is None:
                return
            yield num_tokens, block

    def _longest(self, digests: PromptDigests, max_tokens: int) -> Checkpoint | None:
        """The longest checkpoint whose whole prefix the prompt begins with."""
        found: Checkpoint | None = None
        for _, block in self._walk(digests, max_tokens):
            found = _longest_end(block, digests, max_tokens) or found
        return found

    def _size(self, parent: Checkpoint | None, num_tokens: int) -> int:
        return self._sizes.num_bytes(parent.num_tokens if parent else 0, num_tokens)

    # -- coming and going ----------------------------------------------------------------------------

    def _enter(
        self,
        digests: PromptDigests,
        num_tokens: int,
        num_bytes: int,
        parent: Checkpoint | None,
        shared: bool,
    ) -> Checkpoint:
        self._last_id += 1
        first = whole_blocks(parent.num_tokens if parent else 0) + BLOCK_TOKENS
        blocks = tuple(digests.at(end) for end in range(first, num_tokens + 1, BLOCK_TOKENS))
        digest, home = digests.at(num_tokens), digests.at(whole_blocks(num_tokens))
        made = Checkpoint(self._last_id, num_tokens, digest, blocks, home, num_bytes, parent, shared)
        for block in blocks:
            self._blocks.setdefault(block, _Block()).holders[made.id] = made
        self._blocks[home].ends[digest] = made
        self.num_bytes += num_bytes
        self.version += 1
        self._insert(made)
        return made

    def _make_room(self, num_bytes: int, one_off_bytes: int) -> tuple[int, ...]:
        """Evicts until so many bytes more fit, `one_off_bytes` of them for a prefix nobody shared yet."""
        evicted: list[int] = []
        full = self._max_bytes - num_bytes
        while len(self) and (self.num_bytes > full or len(self) >= _MAX_CHECKPOINTS):
            gone = self._next_to_go(one_off_bytes)
            self._remove(gone)
            evicted.append(gone.id)
        self.num_evictions += len(evicted)
        return tuple(evicted)

    def _next_to_go(self, one_off_bytes: int) -> Checkpoint:
        """The one longest unused, of those that nothing builds on."""
        crowded = self._one_off_bytes + one_off_bytes > _ONE_OFF_SHARE * self._max_bytes
        kinds = (self._one_off, self._shared) if crowded else (self._shared, self._one_off)
        return next(c for kind in kinds for c in kind.values() if not c.num_children)

    def _remove(self, gone: Checkpoint) -> None:
        self._discard(gone)
        del self._blocks[gone.home].ends[gone.digest]
        for digest in gone.blocks:
            block = self._blocks[digest]
            del block.holders[gone.id]
            if not block.holders:
                del self._blocks[digest]
        if gone.parent:
            gone.parent.num_children -= 1
        self.num_bytes -= gone.num_bytes
        self.version += 1

    def _touch(self, checkpoint: Checkpoint) -> None:
        """It and what it builds on are shared, and used just now."""
        for link in checkpoint.chain():
            self._discard(link)
            link.shared = True
            self._insert(link)

    def _insert(self, checkpoint: Checkpoint) -> None:
        (self._shared if checkpoint.shared else self._one_off)[checkpoint.id] = checkpoint
        self._one_off_bytes += 0 if checkpoint.shared else checkpoint.num_bytes

    def _discard(self, checkpoint: Checkpoint) -> None:
        del (self._shared if checkpoint.shared else self._one_off)[checkpoint.id]
        self._one_off_bytes -= 0 if checkpoint.shared else checkpoint.num_bytes


def _longest_end(block: _Block, digests: PromptDigests, max_tokens: int) -> Checkpoint | None:
    """The longest checkpoint that ends at this block or before the next, and that the prompt begins with."""
    ends = (c for c in block.ends.values() if c.num_tokens <= max_tokens and _begins(digests, c))
    return max(ends, key=lambda c: c.num_tokens, default=None)


def _begins(digests: PromptDigests, checkpoint: Checkpoint) -> bool:
    return digests.at(checkpoint.num_tokens) == checkpoint.digest
