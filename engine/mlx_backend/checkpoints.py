"""Snapshots of a row's caches, and caches made from them.

A snapshot never shares memory with a live cache that goes on growing: MLX extends a buffer in place only
while nobody else holds it, and would copy it in every step otherwise. So a snapshot is a copy, made once.
Layers that keep every token copy only the tokens that the snapshot's parent does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from engine.core.executor import CheckpointSizes
from engine.core.plan import Keep, Restore


@dataclass(frozen=True, slots=True, eq=False)
class _Snapshot:
    """One checkpoint.

    Attributes:
        start, end: tokens whose keys and values it holds, where a layer keeps every token.
        layers: for each cache its arrays: keys and values `(1, heads, end - start, head_dim)` of a layer
            that keeps every token, the whole state of another.
    """

    parent: _Snapshot | None
    start: int
    end: int
    layers: list[list[mx.array | None]]


class Checkpoints:
    """The snapshots that are held, by checkpoint id."""

    def __init__(self) -> None:
        self._held: dict[int, _Snapshot] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all snapshots together."""
        layers = (layer for snapshot in self._held.values() for layer in snapshot.layers)
        return sum(array.nbytes for layer in layers for array in layer if array is not None)

    def keep(self, keep: Keep, caches: Sequence[Any]) -> list[mx.array]:
        """Takes a snapshot; returns its arrays, which are to be computed before the caches grow again."""
        parent = None if keep.parent is None else self._held[keep.parent]
        layers = [_copy(cache, keep.start, keep.num_tokens) for cache in _leaves(caches)]
        self._held[keep.checkpoint] = _Snapshot(parent, keep.start, keep.num_tokens, layers)
        return [array for layer in layers for array in layer if array is not None]

    def restore(self, restore: Restore, caches: Sequence[Any], room_tokens: int) -> None:
        """Fills empty caches with a checkpoint's first tokens.

        Args:
            room_tokens: tokens that the layers which keep every token get room for, these included.
        """
        newest = self._held[restore.checkpoint]
        for index, cache in enumerate(_leaves(caches)):
            if type(cache) is KVCache:
                _fill(cache, _pieces(newest, index, restore.num_tokens), restore.num_tokens, room_tokens)
            else:
                assert restore.num_tokens == newest.end, "a state cannot be shortened"
                _fill_state(cache, newest.layers[index], restore.num_tokens)

    def drop(self, checkpoint: int) -> None:
        del self._held[checkpoint]

    def clear(self) -> None:
        self._held.clear()


def checkpoint_sizes(caches: Sequence[Any], capacity_bytes: int) -> CheckpointSizes | None:
    """What snapshots take, from caches that have read something (shapes only, nothing is computed).

    Returns:
        None when a cache is of a kind of which no snapshot can be taken.
    """
    token_bytes = state_bytes = 0
    windows: dict[int, int] = {}
    for cache in _leaves(caches):
        if type(cache) is KVCache:
            token_bytes += _token_bytes(cache)
        elif type(cache) is RotatingKVCache:
            windows[cache.max_size] = windows.get(cache.max_size, 0) + _token_bytes(cache)
        elif type(cache) is ArraysCache:
            state_bytes += sum(array.nbytes for array in cache.cache if array is not None)
        else:
            return None
    return CheckpointSizes(token_bytes, tuple(windows.items()), state_bytes, capacity_bytes)


def _token_bytes(cache: Any) -> int:
    return int((cache.keys.nbytes + cache.values.nbytes) // cache.keys.shape[2])


def _leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """The caches, those inside a list of caches too."""
    for cache in caches:
        if type(cache) is CacheList:
            yield from _leaves(cache.caches)
        else:
            yield cache


# -- taking ------------------------------------------------------------------------------------------


def _copy(cache: Any, start: int, end: int) -> list[mx.array | None]:
    if type(cache) is KVCache:
        return [_own(array[..., start:end, :]) for array in (cache.keys, cache.values)]
    if type(cache) is RotatingKVCache:
        assert cache.offset == end, "a window has moved past the checkpoint"
        return [_own(_latest(cache, array)) for array in (cache.keys, cache.values)]
    return [None if array is None else _own(array) for array in cache.cache]


def _own(array: mx.array) -> mx.array:
    """A copy with memory of its own; a slice would keep all of what it was cut from."""
    return array * 1


def _latest(cache: RotatingKVCache, array: mx.array) -> mx.array:
    """What a window still sees, oldest first; after a chunk it holds more."""
    ordered = cache._temporal_order(array)
    latest: mx.array = cache._trim(max(0, ordered.shape[2] - cache.max_size), ordered)
    return latest


# -- putting back ------------------------------------------------------------------------------------


def _pieces(snapshot: _Snapshot, index: int, num_tokens: int) -> list[list[mx.array]]:
    """Keys and values of layer `index`'s first tokens, from the snapshots that hold them, in order."""
    pieces: list[list[mx.array]] = []
    link: _Snapshot | None = snapshot
    while link:
        if link.start < num_tokens:
            held = min(num_tokens, link.end) - link.start
            arrays = [array for array in link.layers[index] if array is not None]
            pieces.insert(0, [array[..., :held, :] for array in arrays])
        link = link.parent
    return pieces


def _fill(cache: KVCache, pieces: Sequence[Sequence[mx.array]], num_tokens: int, room_tokens: int) -> None:
    """One array with room to grow, so that what follows extends it in place."""
    room = -(-max(room_tokens, num_tokens) // KVCache.step) * KVCache.step - num_tokens
    cache.keys, cache.values = (_joined(parts, room) for parts in zip(*pieces, strict=True))
    cache.offset = num_tokens


def _joined(parts: Sequence[mx.array], room_tokens: int) -> mx.array:
    _, heads, _, width = parts[0].shape
    room = mx.zeros((1, heads, room_tokens, width), parts[0].dtype)
    return mx.concatenate([*parts, room], axis=2)


def _fill_state(cache: Any, arrays: Sequence[mx.array | None], num_tokens: int) -> None:
    """The arrays themselves: these caches are replaced as they grow, or copied once on their first write."""
    if type(cache) is RotatingKVCache:
        cache.keys, cache.values = arrays
        cache.offset = num_tokens
        cache._idx = cache.keys.shape[2]
    else:
        cache.cache = list(arrays)
