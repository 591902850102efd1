"""A pass that is computed a few layers a step.

MLX computes nothing until it is asked to. So the whole pass is written down once, when it begins, and each
step asks for the keys and values of the layer that it is to come to: what lies before them is computed, what
lies after them is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from engine.core.plan import LayeredPass, PrefillChunk
from engine.mlx_backend.forward import Forward, Segment
from engine.mlx_backend.row import Row, draw

# Tokens' worth of a share that is launched first, to outlast the launch of the others, and of one that is
# left when the next is launched: little when that is written down, and more when a pass has to be. On an H200
# these take 10, 5 and 10 ms, and writing a pass down 8 (our measurement, November 2026). More at first blocks
# the host (`launches`) while tokens of the step before are ready: 30 ms with six layers of 8,192 tokens.
_FIRST_TOKENS, _LEFT_TOKENS, _LEFT_AT_END_TOKENS = 320, 160, 320


class PassUnderWay:
    """The row's caches are not to be used before the pass has come to its end."""

    def __init__(self, forward: Forward, row: Row, layered: LayeredPass) -> None:
        prompt = row.request.prompt
        tokens = mx.array(list(prompt[layered.start : layered.end]))
        logits = forward.read([Segment(tokens, row.caches, drawn=layered.end == len(prompt))])
        if logits is not None:
            draw(logits, [row])
        self.layered = layered
        self._marks = [marker(cache) for cache in row.caches]
        self._leaves = [leaves_of(cache) for cache in row.caches]
        self._seen = [] if row.seen is None else [row.seen]

    @property
    def num_layers(self) -> int:
        return len(self._marks)

    def layers_of(self, num_tokens: int) -> int:
        """Layers that compute as long as so many tokens of a prompt, rounded up."""
        return -(-num_tokens * self.num_layers // self.layered.num_tokens)

    def mark(self, num_layers: int) -> mx.array:
        """Exists once so many layers are done, or all that somebody needs of them."""
        return self._marks[min(num_layers, self.num_layers - 1)]

    def state(self, begin: int, end: int) -> list[mx.array]:
        """What these layers leave behind, also where no later one asks for it."""
        left = [leaf for leaves in self._leaves[begin:end] for leaf in leaves]
        return left + (self._seen if end == self.num_layers else [self._marks[end]])


@dataclass(frozen=True, slots=True)
class Share:
    """What a step does of a pass.

    Attributes:
        begin, end: layers that are done before and after it.
    """

    under_way: PassUnderWay
    begin: int
    end: int

    @property
    def state(self) -> list[mx.array]:
        return self.under_way.state(self.begin, self.end)

    @property
    def last(self) -> mx.array:
        """Exists once the share is done."""
        return self.under_way.mark(self.end)

    def cuts(self, alone: bool) -> tuple[mx.array, mx.array]:
        """Where a few of its layers are done, and where so little of the step is left that the next should be
        launched: a part of the share when the step does nothing else, else nothing.
        """
        most = self.end - self._left if alone else self.end
        few = self.begin + self.under_way.layers_of(_FIRST_TOKENS)
        return self.under_way.mark(min(few, most)), self.under_way.mark(most)

    @property
    def _left(self) -> int:
        """Layers that are left when the next share is launched; not all."""
        ends = self.end == self.under_way.num_layers
        left = self.under_way.layers_of(_LEFT_AT_END_TOKENS if ends else _LEFT_TOKENS)
        return min(left, self.end - self.begin - 1)


def share_of(under_way: PassUnderWay, chunk: PrefillChunk) -> Share:
    """The chunk, in layers."""
    layered = under_way.layered
    assert chunk.layered == layered, "a pass goes on that never began"
    return Share(under_way, layered.layers_at(chunk.start), layered.layers_at(chunk.end))


def state_of(rows: Sequence[Row]) -> list[mx.array]:
    """Everything a launch leaves behind in its rows, so that no later launch has to compute it."""
    seen = [row.seen for row in rows if row.seen is not None]
    return seen + [leaf for row in rows for cache in row.caches for leaf in leaves_of(cache)]


def leaves_of(cache: Any) -> list[mx.array]:
    return [leaf for _, leaf in tree_flatten(cache.state) if isinstance(leaf, mx.array)]


def marker(cache: Any) -> mx.array:
    """A number that exists once the cache's layer has extended it.

    It never shares memory with a cache, because a cache that somebody else can see is copied, not extended.
    """
    last = leaves_of(cache)[-1]
    return last[(0,) * last.ndim] + 0
