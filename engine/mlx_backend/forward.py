"""Forward passes over the tokens of one row or of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from engine.mlx_backend.adapt import adapt_model
from engine.mlx_backend.positions import select_positions
from engine.mlx_backend.projections import flatten_projections, write_out_for_many
from engine.mlx_backend.row_caches import Layout, UnbatchableCacheError, join_caches

# Logits of a row among others may differ from those of the row alone by rounding: matrix products of other
# shapes sum in another order. A wrong pass differs by the logits' own size. Chosen, not measured, between the
# two: bfloat16 rounds to 0.4 % each time.
_ROUNDING = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Neighbouring tokens of one row, to be read after what its caches hold.

    Attributes:
        tokens: `(length,)`, possibly not computed yet.
        caches: one per layer.
        drawn: the next token is drawn, so the logits after the last one are wanted.
    """

    tokens: mx.array
    caches: Sequence[Any]
    drawn: bool = True

    @property
    def length(self) -> int:
        return self.tokens.shape[0]


class Forward:
    """A model's forward passes, adapted to what the executor needs.

    Attributes:
        vocab: size of the logits.
        batches: rows of one token each go through the model in one pass; otherwise one after the other,
            which is as right and slower.
        one_pass: rows of any length do.
        num_layers: a pass can be halted between them, for each has a cache of its own; 1 when they do not.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        adapt_model(model)
        flatten_projections(model)
        write_out_for_many(model)
        self._selection = select_positions(model)
        self._selection.choose_last()
        self.vocab = int(model(mx.zeros((1, 1), mx.int32)).shape[-1])
        self._selection.spares = self._spares_rightly()
        self.batches = self._reads_rightly((1, 1, 1))
        self.one_pass = self.batches and self._reads_rightly((1, 4, 2))
        self._selection.choose_last()
        self.num_layers = self._count_layers()

    def _count_layers(self) -> int:
        num_caches = len(make_prompt_cache(self._model))
        return num_caches if num_caches == len(getattr(self._model, "layers", ())) else 1

    def new_caches(self, num_tokens: int) -> list[Any]:
        """Empty caches of one row, the plain ones allocated for `num_tokens` at their first use.

        A cache that need not grow is extended in place; one that grows is copied each time.
        """
        caches: list[Any] = make_prompt_cache(self._model)
        for cache in _plain(caches):
            cache.step = -(-num_tokens // KVCache.step) * KVCache.step
        return caches

    def read(self, segments: Sequence[Segment]) -> mx.array | None:
        """Extends every segment's caches.

        Returns:
            Logits `(drawn segments, vocab)` in order, or None when nothing is drawn. Nothing is computed
            until it is used.
        """
        logits = [self._together(group) for group in self._passes(segments)]
        for segment in segments:
            _grow_by_blocks(segment.caches)
        return _joined(logits) if any(segment.drawn for segment in segments) else None

    def _passes(self, segments: Sequence[Segment]) -> list[Sequence[Segment]]:
        """The segments that go through the model together, in order, so that their logits are too."""
        if self.one_pass:
            return [segments]
        passes: list[Sequence[Segment]] = []
        for short, group in groupby(segments, lambda segment: segment.length == 1):
            neighbours = list(group)
            passes += [neighbours] if short and self.batches else [[segment] for segment in neighbours]
        return passes

    def _together(self, segments: Sequence[Segment]) -> mx.array | None:
        if len(segments) == 1:
            return self._alone(segments[0])
        return self._as_rows(segments)

    def _alone(self, segment: Segment) -> mx.array | None:
        self._selection.choose([segment.length], [segment.drawn], as_rows=False)
        logits: mx.array = self._model(segment.tokens[None], cache=segment.caches)
        return logits[:, -1] if segment.drawn else None

    def _as_rows(self, segments: Sequence[Segment]) -> mx.array | None:
        layout = Layout([segment.length for segment in segments])
        caches = join_caches([segment.caches for segment in segments], layout)
        tokens = mx.concatenate([segment.tokens for segment in segments])[:, None]
        drawn = [segment.drawn for segment in segments]
        self._selection.choose(layout.lengths, drawn, as_rows=True)
        logits: mx.array = self._model(tokens, cache=caches)
        return self._selection.chosen(logits)[:, -1] if any(drawn) else None

    def _spares_rightly(self) -> bool:
        """Whether a chunk's last token has the same logits when the last layer is spared the others."""
        wanted = self._alone(self._some(4, depth=3))
        self._selection.spares = True
        try:
            return _are_equal(self._alone(self._some(4, depth=3)), wanted)
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError):
            return False

    def _reads_rightly(self, lengths: tuple[int, int, int]) -> bool:
        """Whether rows of different depths, a new one among them, get the logits they get alone."""
        alone, together = (
            [self._some(n, depth) for n, depth in zip(lengths, (3, 5, 0), strict=True)] for _ in "ab"
        )
        wanted = _joined([self._alone(segment) for segment in alone])
        try:
            found = _joined([self._as_rows(together)])
        except (
            UnbatchableCacheError,
            TypeError,
            ValueError,
            AttributeError,
            IndexError,
            KeyError,
            RuntimeError,
        ):
            return False
        return _are_equal(found, wanted)

    def _some(self, length: int, depth: int) -> Segment:
        """Any tokens, behind `depth` others that have been read."""
        caches = self.new_caches(depth + length)
        if depth:
            mx.eval(self._alone(Segment(mx.arange(depth), caches)))
        return Segment(mx.arange(length), caches)


def _plain(caches: Sequence[Any]) -> Iterator[KVCache]:
    """Those that keep every token."""
    return (cache for cache in caches if type(cache) is KVCache)


def _grow_by_blocks(caches: Sequence[Any]) -> None:
    """Lets allocated caches grow by a block at a time from now on, not by their first size again."""
    for cache in _plain(caches):
        if "step" not in vars(cache):
            return
        del cache.step


def _are_equal(found: mx.array | None, wanted: mx.array | None) -> bool:
    """But for rounding."""
    assert found is not None
    assert wanted is not None
    error = mx.max(mx.abs(found - wanted)) / mx.max(mx.abs(wanted))
    return bool((error < _ROUNDING).item())


def _joined(logits: Sequence[mx.array | None]) -> mx.array:
    return mx.concatenate([array for array in logits if array is not None])
