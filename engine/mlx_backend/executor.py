"""The executor port on MLX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache

from engine.core.executor import ModelInfo
from engine.core.plan import PrefillChunk
from engine.core.request import Request
from engine.mlx_backend.model import LoadedModel
from engine.mlx_backend.row import Row, draw

# Output tokens a cache is preallocated for; a longer answer grows it.
_PREALLOCATED_OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Ticket:
    """Launched work: what to wait for and what it returns.

    Attributes:
        tokens: the tokens drawn, `(n,)` in all.
        markers: computed when the work is. They never share memory with a cache, because a cache that
            somebody else can see is copied, not extended.
    """

    tokens: tuple[mx.array, ...]
    markers: tuple[mx.array, ...] = ()


class MlxExecutor:
    """Runs prompts and tokens through a model on MLX. One thread owns it from load to close."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._info = loaded.info
        self._model: nn.Module | None = loaded.model
        self._rows: dict[str, Row] = {}
        self._vocab = int(loaded.model(mx.zeros((1, 1), mx.int32)).shape[-1])

    @property
    def info(self) -> ModelInfo:
        return self._info

    def start(self, request: Request) -> None:
        caches = make_prompt_cache(self._model)
        _preallocate(caches, request)
        self._rows[request.id] = Row(request, caches, self._vocab)

    def release(self, request_id: str) -> None:
        self._rows.pop(request_id, None)

    def launch_decode(self, request_ids: tuple[str, ...]) -> Ticket:
        rows = [self._rows[request_id] for request_id in request_ids]
        logits = mx.concatenate([self._forward(row, _last_token(row)[None]) for row in rows])
        tokens = draw(logits, rows)
        mx.async_eval(tokens)
        return Ticket((tokens,))

    def launch_prefill(self, chunks: tuple[PrefillChunk, ...]) -> Ticket:
        tokens: list[mx.array] = []
        markers: list[mx.array] = []
        for chunk in chunks:
            row = self._rows[chunk.request_id]
            ids = row.request.prompt[chunk.start : chunk.start + chunk.num_tokens]
            logits = self._forward(row, mx.array([list(ids)]))
            if chunk.completes_prompt:
                tokens.append(draw(logits, [row]))
                mx.async_eval(tokens[-1])
            else:
                markers.append(_launch_caches(row))
        return Ticket(tuple(tokens), tuple(markers))

    def wait(self, ticket: Ticket) -> tuple[int, ...]:
        mx.eval(ticket.tokens, ticket.markers)
        return tuple(int(token) for tokens in ticket.tokens for token in _as_list(tokens))

    def close(self) -> None:
        self._rows.clear()
        self._model = None
        mx.synchronize()
        # Without this the process can abort when it exits after a thread that used MLX has ended.
        mx.clear_streams()

    def _forward(self, row: Row, ids: mx.array) -> mx.array:
        """Logits `(1, vocab)` after the last of `ids` `(1, length)`; computed only if they are used."""
        assert self._model is not None
        logits: mx.array = self._model(ids, cache=row.caches)
        return logits[:, -1, :]


def _last_token(row: Row) -> mx.array:
    assert row.last_token is not None, "decode before the prompt was complete"
    return row.last_token


def _as_list(tokens: mx.array) -> Sequence[int]:
    return list(tokens.tolist())


def _preallocate(caches: Sequence[object], request: Request) -> None:
    num_tokens = request.num_prompt_tokens + min(request.max_tokens, _PREALLOCATED_OUTPUT_TOKENS)
    for cache in caches:
        if type(cache) is KVCache:
            cache.step = -(-num_tokens // KVCache.step) * KVCache.step


def _launch_caches(row: Row) -> mx.array:
    """Starts computing a row's caches; returns a marker that is computed with them."""
    arrays = [leaf for _, leaf in tree_flatten([c.state for c in row.caches]) if isinstance(leaf, mx.array)]
    last = arrays[-1]
    marker = last[(0,) * last.ndim] + 0
    mx.async_eval(arrays, marker)
    return marker
