"""What chunking costs the matrix products alone, on CUDA.

    python -m tests.benchmarks.products

Adds up every product with weights that a prompt takes, the rest of the model left out: with quantised
weights as MLX multiplies them, with weights written out for each product as the engine does it there, and
with weights that are dense to begin with. Smaller chunks make smaller matrices, which use the device less
well, and write the weights out more often; no order of launches wins that back.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn

from engine.mlx_backend.cuda_products import dense_product, dense_weight
from engine.mlx_backend.device import on_cuda
from tests.benchmarks.random_model import add_shape_flags

# Products in one timing, each with weights of its own, as in a model; the shortest timing counts.
_PRODUCTS, _TIMINGS = 24, 5

Product = Callable[[int, mx.array], mx.array]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt", type=int, default=8000)
    parser.add_argument("--chunks", type=int, nargs="+", default=[2048, 1024, 512, 256])
    add_shape_flags(parser)
    args = parser.parse_args()
    if not on_cuda():
        parser.error("weights are written out on CUDA alone: run this where MLX computes there")
    if args.model or args.bits not in (2, 4, 8) or args.dtype == "float32":
        parser.error("give a shape, not a model, with 2, 4 or 8 bits, in bfloat16 or float16")
    sizes = [args.prompt, *args.chunks]
    totals_s: dict[str, list[float]] = {}
    for width, out, count in _projections(args):
        for way, product in _ways(width, out, args).items():
            seconds = [_seconds(product, size, width, args) * args.prompt / size for size in sizes]
            so_far_s = totals_s.get(way, [0.0] * len(sizes))
            totals_s[way] = [a + count * args.layers * b for a, b in zip(so_far_s, seconds, strict=True)]
    for way, so_far_s in totals_s.items():
        print(f"{way:12}", *_shown(sizes, so_far_s), sep="   ", flush=True)


def _projections(shape: argparse.Namespace) -> list[tuple[int, int, int]]:
    """Width in, width out, and how many of a Llama layer's projections have them."""
    kv_width = shape.hidden * shape.kv_heads // shape.heads
    return [
        (shape.hidden, shape.hidden, 2),
        (shape.hidden, kv_width, 2),
        (shape.hidden, shape.ffn, 2),
        (shape.ffn, shape.hidden, 1),
    ]


def _ways(width: int, out: int, shape: argparse.Namespace) -> dict[str, Product]:
    dtype = getattr(mx, shape.dtype)
    layers = []
    for _ in range(_PRODUCTS):
        layer = nn.QuantizedLinear(width, out, bias=False, bits=shape.bits)
        layer.set_dtype(dtype)
        layers.append(layer)
    dense: Sequence[mx.array] = [dense_weight(layer) for layer in layers]
    mx.eval([layer.parameters() for layer in layers], dense)
    return {
        "quantised": lambda number, x: layers[number](x),
        "written out": lambda number, x: dense_product(layers[number], x),
        "dense": lambda number, x: x @ dense[number].T,
    }


def _seconds(product: Product, num_tokens: int, width: int, shape: argparse.Namespace) -> float:
    """For one product."""
    x = mx.random.normal((1, num_tokens, width)).astype(getattr(mx, shape.dtype))
    mx.eval(product(0, x))
    timings = []
    for _ in range(_TIMINGS):
        began_s = time.perf_counter()
        mx.eval([product(number, x) for number in range(_PRODUCTS)])
        timings.append(time.perf_counter() - began_s)
    return min(timings) / _PRODUCTS


def _shown(sizes: Sequence[int], seconds: Sequence[float]) -> list[str]:
    whole_s = seconds[0]
    pairs = zip(sizes, seconds, strict=True)
    return [f"{size}: {total_s:.3f} s ({100 * (total_s / whole_s - 1):+.0f} %)" for size, total_s in pairs]


if __name__ == "__main__":
    main()
