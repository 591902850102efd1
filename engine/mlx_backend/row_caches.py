"""A decode batch's caches: each row keeps its own, and every layer sees all of them at once.

Everything that depends on how mlx-lm's caches and attention work together is in this file and
`adapt.py`. A batch is nothing but a list of rows, so joining and leaving cost nothing, no row is padded
to another's length, and a row's attention is computed exactly as if it were alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache


class UnbatchableCacheError(TypeError):
    """A model's cache is of a kind that cannot stand in one batch with others."""


def join_caches(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """One cache a layer for a forward pass over all rows, each row given as its list of caches.

    Raises:
        UnbatchableCacheError: the caches are of a kind this does not know.
    """
    return [_join(layer) for layer in zip(*rows, strict=True)]


def _join(caches: Sequence[Any]) -> Any:
    first = caches[0]
    if type(first) in (KVCache, RotatingKVCache):
        return RowKVCaches(caches)
    if type(first) is ArraysCache:
        return RowStates(caches)
    if type(first) is CacheList:
        return CacheList(*join_caches([cache.caches for cache in caches]))
    raise UnbatchableCacheError(type(first).__name__)


class RowKVCaches:
    """Keys and values of one layer, one cache a row.

    `update_and_fetch` returns *lists* of arrays, which only `attend_rows` understands: a model that does
    anything else with them fails at once instead of computing something wrong.
    """

    def __init__(self, caches: Sequence[Any]) -> None:
        self._caches = caches

    @property
    def offset(self) -> mx.array:
        return mx.array([cache.offset for cache in self._caches])

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[list[mx.array], list[mx.array]]:
        pairs = [
            cache.update_and_fetch(keys[row : row + 1], values[row : row + 1])
            for row, cache in enumerate(self._caches)
        ]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def make_mask(self, *args: Any, **kwargs: Any) -> list[Any] | None:
        masks = [cache.make_mask(*args, **kwargs) for cache in self._caches]
        return None if all(mask is None for mask in masks) else masks


class RowStates:
    """Recurrent states of one layer, one cache a row, read and written as one batch."""

    lengths = None
    left_padding = None

    def __init__(self, caches: Sequence[Any]) -> None:
        self._caches = caches

    def __getitem__(self, index: int) -> mx.array | None:
        states = [cache[index] for cache in self._caches]
        if any(state is None for state in states):
            return None
        return mx.concatenate(states)

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
    queries: mx.array,
    keys: Sequence[mx.array],
    values: Sequence[mx.array],
    masks: Sequence[Any] | None,
    **options: Any,
) -> mx.array:
    """`attention` of each row of `queries` `(rows, heads, 1, head_dim)` over its own keys and values."""
    outputs = [
        attention(
            queries[row : row + 1],
            keys[row],
            values[row],
            mask=None if masks is None else masks[row],
            **options,
        )
        for row in range(len(keys))
    ]
    return mx.concatenate(outputs)
