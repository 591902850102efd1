from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from engine.mlx_backend import cuda_attention
from engine.mlx_backend.cuda_attention import GRID_TOKENS

SCALE = 0.2
SHAPES = [(5, 5), (100, 300), (256, 512), (300, 300), (700, 1021), (2, 257), (255, 256)]


def inputs(length: int, context: int) -> tuple[mx.array, mx.array, mx.array]:
    keys = iter(mx.random.split(mx.random.key(length * context), 3))
    shapes = (1, 4, length, 16), (1, 2, context, 16), (1, 2, context, 16)
    queries, ks, vs = (mx.random.normal(shape, key=next(keys)) for shape in shapes)
    return queries, ks, vs


@pytest.mark.parametrize(("length", "context"), SHAPES)
def test_on_the_grid_it_is_the_same_attention(length: int, context: int) -> None:
    queries, keys, values = inputs(length, context)
    wanted = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=SCALE, mask="causal")
    found = cuda_attention.causal_attention(queries, keys, values, SCALE, None)
    assert found.shape == wanted.shape
    assert mx.max(mx.abs(found - wanted)).item() < 1e-5


@pytest.mark.parametrize(("length", "context"), SHAPES)
def test_lengths_lie_on_the_grid(monkeypatch: pytest.MonkeyPatch, length: int, context: int) -> None:
    seen: list[tuple[int, ...]] = []
    library = mx.fast.scaled_dot_product_attention

    def spy(*arrays: mx.array, **options: Any) -> mx.array:
        seen.append(tuple(array.shape[2] for array in arrays))
        return library(*arrays, **options)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", spy)
    cuda_attention.causal_attention(*inputs(length, context), SCALE, None)
    ((queries, keys, values),) = seen
    assert queries % GRID_TOKENS == keys % GRID_TOKENS == 0
    assert queries <= keys == values < context + GRID_TOKENS


@pytest.mark.parametrize(
    ("length", "dtype", "head_dim", "mask"),
    [
        (1, mx.bfloat16, 64, "causal"),
        (9, mx.float32, 64, "causal"),
        (9, mx.bfloat16, 256, "causal"),
        (9, mx.bfloat16, 64, None),
        (9, mx.bfloat16, 64, mx.zeros((9, 9), mx.bool_)),
    ],
)
def test_what_cudnn_is_not_asked_for_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, length: int, dtype: mx.Dtype, head_dim: int, mask: Any
) -> None:
    monkeypatch.setattr(cuda_attention, "on_cuda", lambda: True)
    chunk = mx.zeros((1, 2, 9, 64), mx.bfloat16)
    assert cuda_attention.fits(chunk, chunk, None, "causal")
    other = mx.zeros((1, 2, length, head_dim), dtype)
    assert not cuda_attention.fits(other, other, None, mask)
