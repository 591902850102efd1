"""The caches of a pass over several rows: each row keeps its own, and every layer sees all of them at once.

Everything that depends on how mlx-lm's caches and attention work together is in this file and `adapt.py`.

Such a pass gives the model every token as a batch row of its own, `(tokens, 1)`: all that a model does to a
token alone (projections, feed-forward, experts, norms) is done to all of them together, whoever they belong
to. Only attention is told which tokens stand beside each other in a row. A row that writes has one token, a
chunk has many. So rows join and leave at no cost, none is padded to another's length, and a step that reads
and writes goes through the weights once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache


class UnbatchableCacheError(TypeError):
    """A model's cache is of a kind that cannot stand in one pass with others."""


class Layout:
    """Which tokens of a pass belong to which row.

    Args:
        lengths: neighbouring tokens of each row.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self._stops = list(accumulate(lengths))
        self._positions: dict[tuple[int, ...], mx.array] = {}

    def positions(self, offsets: tuple[int, ...]) -> mx.array:
        """The position of every token in its row, `(tokens,)`, where row i's first stands at `offsets[i]`.

        Made once for all layers whose caches are equally long.
        """
        if offsets not in self._positions:
            rows = zip(offsets, self.lengths, strict=True)
            runs = [np.arange(start, start + n, dtype=np.int32) for start, n in rows]
            self._positions[offsets] = mx.array(np.concatenate(runs))
        return self._positions[offsets]

    def split(self, tokens: mx.array) -> list[mx.array]:
        """Rows `(1, heads, length, width)` of `tokens` `(tokens, heads, 1, width)`."""
        parts = mx.split(tokens, self._stops[:-1])
        return [part.transpose(2, 1, 0, 3) if part.shape[0] > 1 else part for part in parts]

    def join(self, rows: Sequence[mx.array]) -> mx.array:
        """The reverse of `split`."""
        return mx.concatenate([row.transpose(2, 1, 0, 3) if row.shape[2] > 1 else row for row in rows])


def join_caches(rows: Sequence[Sequence[Any]], layout: Layout) -> list[Any]:
    """One cache a layer for a pass over all rows, each row given as its list of caches.

    Raises:
        UnbatchableCacheError: the caches are of a kind this does not know.
    """
    return [_join(layer, layout) for layer in zip(*rows, strict=True)]


def _join(caches: Sequence[Any], layout: Layout) -> Any:
    first = caches[0]
    if type(first) in (KVCache, RotatingKVCache):
        return RowKVCaches(caches, layout)
    if type(first) is ArraysCache and max(layout.lengths) == 1:
        return RowStates(caches)
    if type(first) is CacheList:
        return CacheList(*join_caches([cache.caches for cache in caches], layout))
    raise UnbatchableCacheError(type(first).__name__)


class RowKVCaches:
    """Keys and values of one layer, one cache a row.

    `update_and_fetch` returns *lists* of arrays, which only `attend_rows` understands: a model that does
    anything else with them fails at once instead of computing something wrong.
    """

    def __init__(self, caches: Sequence[Any], layout: Layout) -> None:
        self.layout = layout
        self._caches = caches

    @property
    def is_plain(self) -> bool:
        """Whether all rows keep every token."""
        return all(type(cache) is KVCache for cache in self._caches)

    def part(self, rows: Sequence[int], lengths: Sequence[int]) -> RowKVCaches:
        """The caches of some of the rows, for so many tokens of each."""
        return RowKVCaches([self._caches[row] for row in rows], Layout(lengths))

    @property
    def offset(self) -> mx.array:
        return self.layout.positions(tuple(cache.offset for cache in self._caches))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[list[mx.array], list[mx.array]]:
        rows = zip(self._caches, self.layout.split(keys), self.layout.split(values), strict=True)
        pairs = [cache.update_and_fetch(row_keys, row_values) for cache, row_keys, row_values in rows]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def make_mask(self, num_tokens: int, *args: Any, **kwargs: Any) -> list[Any] | None:
        """A mask for each row. The model only knows that every batch row is one token long."""
        rows = zip(self._caches, self.layout.lengths, strict=True)
        masks = [cache.make_mask(length, *args, **kwargs) for cache, length in rows]
        return None if all(mask is None for mask in masks) else masks


class RowStates:
    """Recurrent states of one layer, one cache a row, read and written as one batch of single tokens."""

    lengths = None
    left_padding = None

    def __init__(self, caches: Sequence[Any]) -> None:
        self._caches = caches

    def __getitem__(self, index: int) -> mx.array | None:
        states = [cache[index] for cache in self._caches]
        held = next((state for state in states if state is not None), None)
        if held is None:
            return None
        # A row that has read nothing begins with zeros, as mlx-lm's own batches have it.
        nothing = mx.zeros_like(held)
        return mx.concatenate([nothing if state is None else state for state in states])

    def __setitem__(self, index: int, state: mx.array) -> None:
        for row, cache in enumerate(self._caches):
            cache[index] = state[row : row + 1]

    def advance(self, num_tokens: int) -> None:
        for cache in self._caches:
            cache.advance(num_tokens)

    def make_mask(self, num_tokens: int) -> None:
        """Nothing is padded, so nothing is masked."""


Attention = Callable[..., mx.array]


def attend_rows(
    attention: Attention,
    layout: Layout,
    queries: mx.array,
    keys: Sequence[mx.array],
    values: Sequence[mx.array],
    masks: Sequence[Any] | None,
    **options: Any,
) -> mx.array:
    """`attention` of each row's tokens over its own keys and values.

    Args:
        queries: `(tokens, heads, 1, head_dim)`.
        keys: of each row `(1, kv_heads, context, head_dim)`; values likewise.
    """
    rows = zip(layout.split(queries), keys, values, masks or [None] * len(keys), strict=True)
    return layout.join([attention(q, k, v, mask=mask, **options) for q, k, v, mask in rows])
