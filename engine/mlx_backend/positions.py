"""Computing only what tokens are drawn from.

Of most tokens of a chunk nobody draws the next one. They need not be projected to the vocabulary, and the
last layer need only extend its cache by them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import KVCache

from engine.mlx_backend.row_caches import RowKVCaches

# Where mlx-lm's language models keep the part that ends before the vocabulary projection.
_INNER_NAMES = ("model", "language_model.model", "backbone", "transformer")


class Selection:
    """Which tokens of the next pass are drawn from.

    Attributes:
        applies: the model projects only these; otherwise all, and `chosen` picks from the logits.
        spares: the last layer attends and feeds forward only for these.
    """

    def __init__(self) -> None:
        self.applies = False
        self.spares = False
        self._lengths: Sequence[int] = ()
        self._drawn: Sequence[bool] = ()
        self._as_rows = False
        self._done = False

    def choose(self, lengths: Sequence[int], drawn: Sequence[bool], as_rows: bool) -> None:
        """The last tokens of the drawn segments.

        Args:
            lengths: neighbouring tokens of each segment.
            as_rows: every token is a batch row of its own; otherwise one segment is the batch.
        """
        self._lengths, self._drawn, self._as_rows = lengths, drawn, as_rows
        self._done = False

    def choose_last(self) -> None:
        """The last token of the only segment."""
        self.choose((0,), (True,), as_rows=False)

    def of(self, hidden: mx.array) -> mx.array:
        """`(chosen, 1, width)` of what a pass returned, `(batch, length, width)`; those of some token when
        nothing is drawn, for nobody looks at them then.
        """
        if self._done:
            return hidden
        if self._as_rows:
            hidden = hidden[mx.array(self._places() or [0])]
        return hidden[:, -1:]

    def chosen(self, logits: mx.array) -> mx.array:
        """The chosen tokens' logits, whether or not the model projected others too."""
        return logits if self.applies else self.of(logits)

    def in_last_layer(self, layer: _Layer, x: mx.array, mask: Any, cache: Any) -> Any:
        """The last layer's output for the chosen tokens alone, where that saves anything."""
        if not self._saves(mask, cache):
            return layer(x, mask, cache)
        self._done = True
        if not self._as_rows:
            layer(x[:, :-1], mask, cache)  # nobody asks for the output, so only the cache's part is computed
            return layer(x[:, -1:], None, cache)
        masks = mask or [None] * len(self._lengths)
        silent = [(row, length - drawn) for row, length, drawn in self._rows() if length > drawn]
        others = mx.array(self._silent_places())
        layer(x[others], [masks[row] for row, _ in silent], cache.part(*zip(*silent, strict=True)))
        ends = [row for row, _, drawn in self._rows() if drawn]
        return layer(x[mx.array(self._places())], None, cache.part(ends, [1] * len(ends)))

    def _saves(self, mask: Any, cache: Any) -> bool:
        if not self.spares or not any(self._drawn) or sum(self._lengths) == sum(self._drawn):
            return False
        if self._as_rows:
            return type(cache) is RowKVCaches and cache.is_plain and all(map(_is_causal, mask or ()))
        return type(cache) is KVCache and _is_causal(mask)

    def _rows(self) -> list[tuple[int, int, bool]]:
        return list(zip(range(len(self._lengths)), self._lengths, self._drawn, strict=True))

    def _places(self) -> list[int]:
        """Of the drawn tokens, among all of the pass."""
        stop, places = 0, []
        for length, drawn in zip(self._lengths, self._drawn, strict=True):
            stop += length
            places += [stop - 1] if drawn else []
        return places

    def _silent_places(self) -> npt.NDArray[np.int32]:
        return np.delete(np.arange(sum(self._lengths), dtype=np.int32), self._places())


def _is_causal(mask: Any) -> bool:
    """Whether the mask means the same for a part of the tokens as for all of them."""
    return mask is None or (isinstance(mask, str) and mask == "causal")


def select_positions(model: nn.Module) -> Selection:
    """Makes `model` return logits `(chosen, 1, vocab)` of the selection only.

    The vocabulary projection is the largest product of a small model, and a prompt chunk needs it for one
    position at most. Works for models that project what an inner model returns; the others project all.

    Returns:
        The selection, which `applies` when the model heeds it. Whether it may also `spare` the last layer is
        for the caller to find out: it changes nothing but what is computed.
    """
    selection = Selection()
    for name in _INNER_NAMES:
        inner = _find(model, name)
        if inner is None:
            continue
        original = type(inner)
        inner.__class__ = _exchanged(original, lambda call: lambda *a, **k: selection.of(call(*a, **k)))
        if _heeds(model, selection):
            selection.applies = True
            _spare_last_layer(inner, selection)
            return selection
        inner.__class__ = original
    return selection


def _spare_last_layer(inner: nn.Module, selection: Selection) -> None:
    layer = (getattr(inner, "layers", None) or [None])[-1]
    if not isinstance(layer, nn.Module):
        return
    names = list(inspect.signature(type(layer).__call__).parameters)
    if names[2:] != ["mask", "cache"]:
        return

    def spared(call: Callable[..., Any]) -> Callable[..., Any]:
        def part(self: nn.Module, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
            return selection.in_last_layer(lambda *args: call(self, *args), x, mask, cache)

        return part

    layer.__class__ = _exchanged(type(layer), spared)


_Layer = Callable[[mx.array, Any, Any], Any]


def _exchanged(
    original: type[nn.Module], change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> type[nn.Module]:
    """The class with another call."""
    return type(original.__name__, (original,), {"__call__": change(original.__call__)})


def _find(model: nn.Module, path: str) -> nn.Module | None:
    found: Any = model
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, nn.Module) else None


def _heeds(model: nn.Module, selection: Selection) -> bool:
    """Only shapes are worked out here; nothing is computed."""
    selection.choose_last()
    try:
        return bool(model(mx.zeros((1, 2), mx.int32)).shape[1] == 1)
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError):
        return False
