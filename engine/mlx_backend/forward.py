"""Forward passes: a chunk of one prompt, or one token for each of several rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from engine.mlx_backend.adapt import adapt_model
from engine.mlx_backend.last_position import keep_last_position
from engine.mlx_backend.row_caches import UnbatchableCacheError, join_caches

# Logits of a row in a batch may differ from those of the row alone by rounding: matrix products of other
# shapes sum in another order. A wrong batch differs by the logits' own size.
_ROUNDING = 0.02


class Forward:
    """A model's forward passes, adapted to what the executor needs.

    Attributes:
        vocab: size of the logits.
        batched: several rows go through the model at once; otherwise one after the other, which is as
            right and slower.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        adapt_model(model)
        keep_last_position(model)
        self.vocab = int(model(mx.zeros((1, 1), mx.int32)).shape[-1])
        self.batched = True
        self.batched = self._batches_rightly()

    def new_caches(self, num_tokens: int) -> list[Any]:
        """Empty caches of one row, the plain ones allocated for `num_tokens` at their first use.

        A cache that need not grow is extended in place; one that grows is copied each time.
        """
        caches: list[Any] = make_prompt_cache(self._model)
        for cache in caches:
            if type(cache) is KVCache:
                cache.step = -(-num_tokens // KVCache.step) * KVCache.step
        return caches

    def chunk(self, tokens: mx.array, caches: Sequence[Any]) -> mx.array:
        """Logits `(1, vocab)` after the last of `tokens` `(length,)`; computed only when used."""
        return self._logits(tokens[None], caches)

    def step(self, tokens: Sequence[mx.array], caches: Sequence[Sequence[Any]]) -> mx.array:
        """Logits `(rows, vocab)` after one more token, `(1,)`, of each row."""
        if len(tokens) == 1 or not self.batched:
            rows = zip(tokens, caches, strict=True)
            return mx.concatenate([self._logits(token[None], row) for token, row in rows])
        return self._logits(mx.concatenate(list(tokens))[:, None], join_caches(caches))

    def _logits(self, tokens: mx.array, caches: Sequence[Any]) -> mx.array:
        logits: mx.array = self._model(tokens, cache=caches)
        return logits[:, -1, :]

    def _batches_rightly(self) -> bool:
        """Whether two rows of different lengths get the logits together that they get alone."""
        together = [self._read(length) for length in (3, 5)]
        alone = [self._read(length) for length in (3, 5)]
        tokens = [mx.array([1]), mx.array([2])]
        expected = mx.concatenate([self.step([t], [c]) for t, c in zip(tokens, alone, strict=True)])
        try:
            found = self.step(tokens, together)
        except (UnbatchableCacheError, TypeError, ValueError, AttributeError, IndexError):
            return False
        error = mx.max(mx.abs(found - expected)) / mx.max(mx.abs(expected))
        return bool((error < _ROUNDING).item())

    def _read(self, length: int) -> list[Any]:
        caches = self.new_caches(length + 1)
        mx.eval(self.chunk(mx.arange(length), caches))
        return caches
