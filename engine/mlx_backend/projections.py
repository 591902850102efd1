"""Products with weights over all tokens of a pass at once.

A pass over several rows has its tokens as batch rows of one position, `(tokens, 1, width)`. MLX multiplies
each of them with quantised weights by itself: on an H200 an 8B-class model took 23 s for a prompt that takes
0.9 s as one matrix, and a decode step of three rows twice as long as of one (our measurement, November
2026). So the tokens are put side by side, `(1, tokens, width)`, which moves no data. On CUDA many tokens are
multiplied with the weights written out (`cuda_products`): the same product but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from engine.mlx_backend import cuda_products


def flatten_projections(model: nn.Module) -> None:
    """Makes every projection of the model multiply all tokens together."""
    for part in model.modules():
        if type(part) in _FLAT:
            part.__class__ = _FLAT[type(part)]


def write_out_for_many(model: nn.Module) -> None:
    """Makes flattened projections multiply with weights that are written out, from as many tokens
    on as make that faster on this device.
    """
    quantised = [part for part in model.modules() if isinstance(part, _QuantizedLinear)]
    least = cuda_products.least_dense_tokens(quantised)
    for part in filter(cuda_products.fits, quantised):
        part.least_dense_tokens = least


class _Linear(nn.Linear):  # type: ignore[misc]  # mlx.nn is untyped
    def __call__(self, x: mx.array) -> mx.array:
        return _side_by_side(super().__call__, x)


class _QuantizedLinear(nn.QuantizedLinear):  # type: ignore[misc]
    least_dense_tokens = math.inf

    def __call__(self, x: mx.array) -> mx.array:
        return _side_by_side(self._project, x)

    def _project(self, x: mx.array) -> mx.array:
        if x.size < self.least_dense_tokens * x.shape[-1]:
            product: mx.array = super().__call__(x)
            return product
        return cuda_products.dense_product(self, x)


class _QuantizedEmbedding(nn.QuantizedEmbedding):  # type: ignore[misc]
    def as_linear(self, x: mx.array) -> mx.array:
        return _side_by_side(super().as_linear, x)


_FLAT: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _Linear,
    nn.QuantizedLinear: _QuantizedLinear,
    nn.QuantizedEmbedding: _QuantizedEmbedding,
}


def _side_by_side(project: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
    if x.ndim != 3 or x.shape[1] != 1 or x.shape[0] == 1:
        return project(x)
    return project(x.swapaxes(0, 1)).swapaxes(0, 1)
