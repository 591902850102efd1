"""Projecting to the vocabulary only where a token is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

# Where mlx-lm's language models keep the part that ends before the vocabulary projection.
_INNER_NAMES = ("model", "language_model.model", "backbone", "transformer")


class Selection:
    """Which batch rows of the next pass are projected. Of each, only the last position is."""

    def __init__(self) -> None:
        self.applies = False
        self._places: mx.array | None = None

    def choose(self, places: Sequence[int]) -> None:
        """Batch rows by number; none of them means that nobody looks at the logits."""
        self._places = mx.array(list(places or [0]))

    def choose_last(self) -> None:
        """All batch rows."""
        self._places = None

    def of(self, hidden: mx.array) -> mx.array:
        """`(chosen, 1, width)` of `(batch, length, width)`."""
        chosen = hidden if self._places is None else hidden[self._places]
        return chosen[:, -1:]

    def chosen(self, logits: mx.array) -> mx.array:
        """The chosen rows' logits, whether or not the model projected others too."""
        return logits if self.applies else self.of(logits)


def select_positions(model: nn.Module) -> Selection:
    """Makes `model` return logits `(chosen, 1, vocab)` of the selection only.

    The vocabulary projection is the largest product of a small model, and a prompt chunk needs it for one
    position at most. Works for models that project what an inner model returns; the others project all.

    Returns:
        The selection, which `applies` when the model heeds it.
    """
    selection = Selection()
    for name in _INNER_NAMES:
        inner = _find(model, name)
        if inner is None:
            continue
        original = type(inner)
        inner.__class__ = _selecting(original, selection)
        if _heeds(model):
            selection.applies = True
            return selection
        inner.__class__ = original
    return selection


def _selecting(original: type[nn.Module], selection: Selection) -> type[nn.Module]:
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return selection.of(original.__call__(self, *args, **kwargs))

    return type(original.__name__, (original,), {"__call__": call})


def _find(model: nn.Module, path: str) -> nn.Module | None:
    found: Any = model
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, nn.Module) else None


def _heeds(model: nn.Module) -> bool:
    """Only shapes are worked out here; nothing is computed."""
    try:
        return bool(model(mx.zeros((1, 2), mx.int32)).shape[1] == 1)
    except (TypeError, ValueError, AttributeError, IndexError):
        return False
