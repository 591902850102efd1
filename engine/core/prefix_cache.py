"""What a prompt need not read: prefixes that others have read, or are about to.

The scheduler's half of the prefix cache, pure like the rest of it; the executor obeys the plan's `restore`,
`keep` and `drop`. Checkpoints are entered when they are planned: steps run in the order of plans, so
whatever a later plan restores has been taken by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from engine.core.config import SchedulerConfig
from engine.core.digests import PromptDigests, whole_blocks
from engine.core.executor import CheckpointSizes, ModelInfo
from engine.core.plan import Keep, PrefillChunk, Restore
from engine.core.prefix_index import Hit, PrefixIndex
from engine.core.request import Request
from engine.core.row import Row

# A prefix must be longer by this much to be worth a checkpoint, or to be waited for.
LEAST_TOKENS = 32


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What the cache holds, and what it came to since the model was loaded.

    Attributes:
        queried_tokens: prompt tokens of requests whose reading began; `hit_tokens` of them were held.
        num_evictions: checkpoints that went to make room.
    """

    num_bytes: int = 0
    max_bytes: int = 0
    num_checkpoints: int = 0
    num_queries: int = 0
    num_hits: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    num_evictions: int = 0


@dataclass(slots=True)
class PrefixCache:
    """The index, and what the requests inside want of it."""

    model: ModelInfo
    max_bytes: int
    _index: PrefixIndex = field(init=False)
    _to_drop: list[int] = field(default_factory=list)
    _use: CacheUse = CacheUse()

    def __post_init__(self) -> None:
        self._index = PrefixIndex(self._sizes, self.max_bytes)

    @property
    def _sizes(self) -> CheckpointSizes:
        return self.model.checkpoints or CheckpointSizes(0)

    # -- at the door ---------------------------------------------------------------------------------

    def digest(self, request: Request) -> PromptDigests | None:
        """The prompt's digests; None when it stays out of the cache. Takes no lock and needs none."""
        wanted = request.boundaries and self.model.checkpoints and self._index.max_bytes
        return PromptDigests(request.prompt) if wanted else None

    def expect(self, row: Row, inside: Iterable[Row]) -> int:
        """Prompt tokens that probably come from the cache: held now, or shared with a row that is being
        read or is about to be.
        """
        if row.digests is None:
            return 0
        hit = self.find(row)
        return max([hit.num_tokens if hit else 0, *(n for _, n in self._shared(row, inside))])

    def admit(self, row: Row, inside: Iterable[Row]) -> None:
        """Settles where checkpoints of the row are taken, and which of another row it wants to start from."""
        if row.digests is None:
            return
        row.stops = self._own_stops(row.request)
        hit = self.find(row)
        least = (hit.num_tokens if hit else 0) + LEAST_TOKENS
        other, common = max(self._shared(row, inside), key=lambda pair: pair[1], default=(row, 0))
        known = any(stop >= common and _is_prefix(row, other, stop) for stop in other.stops)
        if common >= least and not known:
            # Either may be read first; the second finds the checkpoint there and takes none.
            row.stops[common] = other.stops[common] = True

    @staticmethod
    def _own_stops(request: Request) -> dict[int, bool]:
        """The first boundary (where the system prompt ends), the last, and the prompt's end, those too
        close to the one before left out.

        Those in between were the last once, when the conversation was shorter. And a chunk has to end where
        caches that cannot be divided are kept: each stop more is a chunk more.
        """
        total = request.num_prompt_tokens
        inner = sorted({b for b in request.boundaries if 0 < b < total})
        stops: dict[int, bool] = {}
        for end in (*inner[:1], *inner[1:][-1:], total):
            if end - max(stops, default=0) >= LEAST_TOKENS:
                stops[end] = not stops and end < total
        return stops

    def _shared(self, row: Row, inside: Iterable[Row]) -> list[tuple[Row, int]]:
        """Rows still to be read, or partly, that begin like this one, and for how many tokens."""
        assert row.digests is not None
        readers = [r for r in inside if r is not row and r.num_unread and r.digests is not None]
        most = whole_blocks(_most(row))
        common = [(r, min(row.digests.common_tokens(r.digests), most)) for r in readers if r.digests]
        if self._sizes.divisible:
            return common
        # Caches that cannot be divided are past that point once it has been read.
        return [(r, n) for r, n in common if n > (r.layered.end if r.layered else r.num_prefilled)]

    # -- a step --------------------------------------------------------------------------------------

    def find(self, row: Row) -> Hit | None:
        """The longest held prefix; the last token is never in it, for its logits are needed."""
        if row.digests is None:
            return None
        if row.found[0] != self._index.version:
            row.found = (self._index.version, self._index.find(row.digests, _most(row)))
        return row.found[1]

    def followers(self, rows: Sequence[Row], last_chunk_step: int) -> set[str]:
        """Ids of prompts that had better wait for a checkpoint that another is about to take.

        Only for one that is being read, and was in the latest step that read anything, or that comes first
        in the order of reading: so nobody waits for a prompt that makes no headway, nor in a circle.

        Args:
            rows: prompts not wholly read, in the order of reading.
            last_chunk_step: the latest step that read anything.
        """
        advancing = [row for row in rows if row.begun and row.last_chunk_step == last_chunk_step]
        following = set()
        for place, row in enumerate(rows):
            ahead = (*advancing, *(earlier for earlier in rows[:place] if not earlier.begun))
            if not row.begun and any(self._awaits(row, reader) for reader in ahead):
                following.add(row.request.id)
        return following

    def _awaits(self, row: Row, reader: Row) -> bool:
        """Whether a checkpoint that `reader` is about to take spares this row more than what is held."""
        if row.digests is None or reader.digests is None:
            return False
        hit = self.find(row)
        least = (hit.num_tokens if hit else 0) + LEAST_TOKENS
        common = min(row.digests.common_tokens(reader.digests), whole_blocks(_most(row)))
        # What can be divided is of use from any stop on that covers enough of what both begin with.
        divided = common if self._sizes.divisible else 0
        useful = (
            stop for stop in reader.stops
            if min(divided, stop) >= least or (stop >= least and _is_prefix(row, reader, stop))
        )  # fmt: skip
        first = min(useful, default=None)
        if first is None or not self._index.fits(reader.digests, first):
            return False
        # A checkpoint inside a pass is taken at its end: not worth more reading by others than it spares.
        left = reader.layered.end - reader.num_prefilled if reader.layered else 0
        return min(common, first) - least + LEAST_TOKENS >= left

    def cut(self, row: Row, chunk: PrefillChunk) -> PrefillChunk:
        """Ends the chunk where a checkpoint is to be taken, if caches must not have gone further then."""
        stop = min((s for s in row.stops if s > chunk.start), default=None)
        if self._sizes.divisible or stop is None or stop >= chunk.end:
            return chunk
        return replace(chunk, num_tokens=stop - chunk.start, completes_prompt=False)

    def undivided_tokens(self, row: Row, start: int) -> int | None:
        """Tokens from `start` to where a pass has to end, because a checkpoint is taken there and others wait
        for it, or caches must not have gone further then. None when nothing ends it.
        """
        stops = (s for s, shared in row.stops.items() if s > start and (shared or not self._sizes.divisible))
        return min((stop - start for stop in stops), default=None)

    def begin(self, row: Row) -> Restore | None:
        """Settles what the row starts from, now that its first chunk is planned."""
        if row.digests is None:
            return None
        hit = self.find(row)
        start = hit.num_tokens if hit else 0
        self._count(row, start)
        if hit is None:
            return None
        self._index.use(hit)
        row.num_prefilled = row.timeline.cached_tokens = start
        row.stops = {stop: shared for stop, shared in row.stops.items() if stop >= start + LEAST_TOKENS}
        if start < min(hit.checkpoint.num_tokens, whole_blocks(_most(row))):
            # Two prompts have parted here, so more will: a checkpoint that ends here is what they build on.
            row.stops[start] = True
        return Restore(row.request.id, hit.checkpoint.id, start)

    def keep(self, rows: Sequence[Row]) -> tuple[Keep, ...]:
        """The checkpoints to take now that the chunks of `rows` are launched; of a row with a pass under way
        when that has come to its end.
        """
        keeps: list[Keep] = []
        for row in rows:
            if row.layered:
                continue
            for stop in sorted(s for s in row.stops if s <= row.num_prefilled):
                self._keep(row, stop, row.stops.pop(stop), keeps)
        return tuple(keeps)

    def _keep(self, row: Row, stop: int, shared: bool, keeps: list[Keep]) -> None:
        assert row.digests is not None
        added = self._index.add(row.digests, stop, shared)
        if added is None:
            return
        planned = {keep.checkpoint for keep in keeps}
        # What this very plan was going to take, and nobody can have seen, is not taken at all.
        keeps[:] = [keep for keep in keeps if keep.checkpoint not in added.evicted]
        self._to_drop += (gone for gone in added.evicted if gone not in planned)
        made, parent = added.checkpoint, added.checkpoint.parent
        start = parent.num_tokens if parent else 0
        keeps.append(Keep(row.request.id, made.id, start, stop, parent.id if parent else None))

    def take_drops(self) -> tuple[int, ...]:
        """Checkpoints that have gone since this was last asked."""
        drops, self._to_drop = tuple(self._to_drop), []
        return drops

    @property
    def has_drops(self) -> bool:
        return bool(self._to_drop)

    # -- settings and numbers ------------------------------------------------------------------------

    def resize(self, max_bytes: int) -> None:
        """Changes the bound; what no longer fits is dropped by the next plan."""
        self._to_drop += self._index.resize(max_bytes)

    @property
    def use(self) -> CacheUse:
        index = self._index
        return replace(
            self._use,
            num_bytes=index.num_bytes,
            max_bytes=index.max_bytes,
            num_checkpoints=len(index),
            num_evictions=index.num_evictions,
        )

    def _count(self, row: Row, hit_tokens: int) -> None:
        self._use = replace(
            self._use,
            num_queries=self._use.num_queries + 1,
            num_hits=self._use.num_hits + (hit_tokens > 0),
            queried_tokens=self._use.queried_tokens + row.request.num_prompt_tokens,
            hit_tokens=self._use.hit_tokens + hit_tokens,
        )


def cache_bytes(config: SchedulerConfig, model: ModelInfo) -> int:
    """Bytes that checkpoints may take together."""
    if model.checkpoints is None:
        return 0
    wanted = config.prefix_cache_bytes
    return model.checkpoints.capacity_bytes if wanted is None else wanted


def _most(row: Row) -> int:
    """Tokens of the prompt that may come from the cache."""
    return row.request.num_prompt_tokens - 1


def _is_prefix(row: Row, reader: Row, stop: int) -> bool:
    """Whether `row` may start from all of `reader`'s first `stop` tokens."""
    assert row.digests is not None
    assert reader.digests is not None
    return stop <= _most(row) and row.digests.at(stop) == reader.digests.at(stop)
