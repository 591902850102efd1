"""Projecting to the vocabulary only where a token is drawn."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

# Where mlx-lm's language models keep the part that ends before the vocabulary projection.
_INNER_NAMES = ("model", "language_model.model", "backbone", "transformer")


def keep_last_position(model: nn.Module) -> bool:
    """Makes `model` return logits `(batch, 1, vocab)` of the last position only.

    The vocabulary projection is the largest product of a small model, and a prompt chunk needs it for
    one position at most. Works for models that project what an inner model returns; the others are left
    as they are.

    Returns:
        Whether the model does so now.
    """
    for name in _INNER_NAMES:
        inner = _find(model, name)
        if inner is None:
            continue
        original = type(inner)
        inner.__class__ = type(original.__name__, (_LastPosition, original), {})
        if _keeps_last(model):
            return True
        inner.__class__ = original
    return False


class _LastPosition(nn.Module):  # type: ignore[misc]  # mlx.nn is untyped
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hidden = super().__call__(*args, **kwargs)
        return hidden[:, -1:, :]


def _find(model: nn.Module, path: str) -> nn.Module | None:
    found: Any = model
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, nn.Module) else None


def _keeps_last(model: nn.Module) -> bool:
    """Only shapes are worked out here; nothing is computed."""
    try:
        return bool(model(mx.zeros((1, 2), mx.int32)).shape[1] == 1)
    except (TypeError, ValueError, AttributeError, IndexError):
        return False
