"""Products of many tokens with quantised weights on CUDA, as dense ones.

MLX multiplies with quantised weights at 130 TFLOP/s on an H200 and with dense ones at 690 (our measurement,
November 2026). So beyond some hundred tokens it pays to write the weights out first: each time, for written
out they take four times the memory. MLX's own `dequantize` does that at a quarter of the memory's speed, a
number at a time; the kernel here stores sixteen bytes at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.mlx_backend.device import on_cuda

_WORD_BITS = 32
_BITS = (2, 4, 8)  # those that do not straddle words
_DTYPES = (mx.float16, mx.bfloat16)
_THREADS = 256

# One thread for each word: sums in float32, rounded once.
_SOURCE = """
    constexpr int per_word = 32 / BITS;
    struct alignas(per_word * sizeof(T) < 16 ? per_word * sizeof(T) : 16) Numbers { T at[per_word]; };
    const size_t word = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (word >= size_t(packed_shape[0]) * packed_shape[1]) return;
    const uint32_t bits = packed[word];
    const size_t group = word * per_word / GROUP;
    const float scale = static_cast<float>(scales[group]);
    const float bias = static_cast<float>(biases[group]);
    Numbers numbers;
    #pragma unroll
    for (int i = 0; i < per_word; ++i) {
        const uint32_t steps = (bits >> (BITS * i)) & ((1u << BITS) - 1);
        numbers.at[i] = static_cast<T>(scale * static_cast<float>(steps) + bias);
    }
    reinterpret_cast<Numbers*>(out)[word] = numbers;
"""

# Tokens at which the two ways are compared, and how much faster the dense one must be to be taken there.
_TRIED_TOKENS = (64, 128, 256, 512, 1024)
_CLEARLY = 1.1
# Products in one timing, and timings of which the shortest counts.
_TRIED_PRODUCTS, _TIMINGS = 12, 3


def dense_weight(layer: nn.QuantizedLinear) -> mx.array:
    """The layer's weights, `(out, in)`, in the type of their scales. Of a layer that `fits`."""
    rows, words = layer.weight.shape
    weight: mx.array
    (weight,) = _kernel()(
        inputs=[layer.weight, layer.scales, layer.biases],
        template=[("T", layer.scales.dtype), ("BITS", layer.bits), ("GROUP", layer.group_size)],
        grid=(rows * words, 1, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, words * _WORD_BITS // layer.bits)],
        output_dtypes=[layer.scales.dtype],
    )
    return weight


@cache
def _kernel() -> Any:
    names = ["packed", "scales", "biases"]
    return mx.fast.cuda_kernel("write_out", input_names=names, output_names=["out"], source=_SOURCE)


def dense_product(layer: nn.QuantizedLinear, x: mx.array) -> mx.array:
    """What the layer makes of `x`, `(…, in)`."""
    product: mx.array = x @ dense_weight(layer).T
    return product + layer.bias if "bias" in layer else product


def fits(layer: nn.QuantizedLinear) -> bool:
    """Whether the layer's weights are of a kind that is written out here."""
    return layer.mode == "affine" and layer.bits in _BITS and layer.scales.dtype in _DTYPES


def least_dense_tokens(layers: Sequence[nn.QuantizedLinear]) -> float:
    """Tokens from which on a dense product is the faster one on this device; infinite where it never is.

    Measured with those of the layers that most of the model consists of. Compiles MLX's matrix kernels where
    no earlier run has.
    """
    alike: dict[tuple[Any, ...], list[nn.QuantizedLinear]] = {}
    for layer in filter(fits, layers):
        kind = (layer.weight.shape, layer.bits, layer.group_size, layer.scales.dtype)
        alike.setdefault(kind, []).append(layer)
    if not alike or not on_cuda():
        return math.inf
    most = max(alike.values(), key=lambda group: sum(layer.weight.size for layer in group))
    return next((n for n in _TRIED_TOKENS if _dense_is_faster(most, n)), math.inf)


def _dense_is_faster(layers: Sequence[nn.QuantizedLinear], num_tokens: int) -> bool:
    first = layers[0]
    x = mx.random.normal((1, num_tokens, first.scales.shape[1] * first.group_size))
    x = x.astype(first.scales.dtype)
    quantised_s = _seconds(layers, lambda layer: nn.QuantizedLinear.__call__(layer, x))
    return _seconds(layers, lambda layer: dense_product(layer, x)) * _CLEARLY < quantised_s


def _seconds(
    layers: Sequence[nn.QuantizedLinear], product: Callable[[nn.QuantizedLinear], mx.array]
) -> float:
    """For some products, with one layer's weights after another's, as in a model."""
    mx.eval(product(layers[0]))  # compiled, and its plan made
    timings = []
    for _ in range(_TIMINGS):
        began_s = time.perf_counter()
        mx.eval([product(layers[index % len(layers)]) for index in range(_TRIED_PRODUCTS)])
        timings.append(time.perf_counter() - began_s)
    return min(timings)
