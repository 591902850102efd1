from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
import pytest

from engine.mlx_backend import cuda_products
from engine.mlx_backend.cuda_products import dense_product, dense_weight, fits, least_dense_tokens
from engine.mlx_backend.projections import flatten_projections, write_out_for_many

needs_cuda = pytest.mark.skipif(not mx.cuda.is_available(), reason="the kernel is CUDA's")


def layer(
    bits: int = 4,
    group_size: int = 64,
    dtype: mx.Dtype = mx.bfloat16,
    mode: str = "affine",
    shape: tuple[int, int] = (128, 96),
    bias: bool = False,
) -> nn.QuantizedLinear:
    width, out = shape
    made = nn.QuantizedLinear(width, out, bias=bias, group_size=group_size, bits=bits, mode=mode)
    made.set_dtype(dtype)
    if bias:
        made.bias = mx.arange(out).astype(dtype)
    return made


def library_weight(of: nn.QuantizedLinear) -> mx.array:
    scales, biases = of.scales.astype(mx.float32), of.biases.astype(mx.float32)
    return mx.dequantize(of.weight, scales, biases, of.group_size, of.bits)


@needs_cuda
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_are_written_out_as_they_are(bits: int, group_size: int, dtype: mx.Dtype) -> None:
    some = layer(bits, group_size, dtype, shape=(512, 96))
    found, wanted = dense_weight(some), library_weight(some)
    assert found.dtype == dtype
    assert mx.array_equal(found, wanted.astype(dtype))


@needs_cuda
def test_a_dense_product_is_the_quantised_one() -> None:
    some = layer(bias=True)
    x = mx.random.normal((1, 40, 128)).astype(mx.bfloat16)
    found, wanted = dense_product(some, x), some(x)
    assert mx.max(mx.abs(found - wanted)).item() <= 0.02 * mx.max(mx.abs(wanted)).item()


@pytest.mark.parametrize(
    "other",
    [layer(bits=3), layer(bits=6), layer(dtype=mx.float32), layer(mode="mxfp4", group_size=32)],
    ids=["3 bits", "6 bits", "float32", "mxfp4"],
)
def test_other_kinds_of_weights_stay_quantised(
    monkeypatch: pytest.MonkeyPatch, other: nn.QuantizedLinear
) -> None:
    monkeypatch.setattr(cuda_products, "on_cuda", lambda: True)
    monkeypatch.setattr(cuda_products, "_dense_is_faster", lambda layers, num_tokens: True)
    assert fits(layer())
    assert least_dense_tokens([layer()]) == 64
    assert not fits(other)
    assert least_dense_tokens([other]) == math.inf


def test_elsewhere_all_stay_quantised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_products, "on_cuda", lambda: False)
    assert least_dense_tokens([layer()]) == math.inf


def test_layers_are_compared_with_their_like(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights of other widths in and other bits can be of one shape."""
    wide, narrow = layer(bits=4, shape=(256, 96)), layer(bits=8, shape=(128, 96))
    assert wide.weight.shape == narrow.weight.shape
    monkeypatch.setattr(cuda_products, "on_cuda", lambda: True)
    monkeypatch.setattr(cuda_products, "dense_product", lambda some, x: nn.QuantizedLinear.__call__(some, x))
    assert least_dense_tokens([wide, narrow]) >= 64


def test_what_most_of_the_model_consists_of_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = layer(shape=(512, 512)), [layer(shape=(256, 512)) for _ in range(3)]
    asked: list[tuple[int, ...]] = []

    def is_faster(layers: list[nn.QuantizedLinear], num_tokens: int) -> bool:
        asked.append((len(layers), num_tokens))
        return num_tokens >= 200

    monkeypatch.setattr(cuda_products, "on_cuda", lambda: True)
    monkeypatch.setattr(cuda_products, "_dense_is_faster", is_faster)
    assert least_dense_tokens([large, *small]) == 256
    assert asked == [(3, 64), (3, 128), (3, 256)]


def test_a_product_is_dense_from_that_many_tokens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[nn.QuantizedLinear] = []

    def write_out(of: nn.QuantizedLinear) -> mx.array:
        written.append(of)
        return library_weight(of).astype(of.scales.dtype)

    monkeypatch.setattr(cuda_products, "dense_weight", write_out)
    monkeypatch.setattr(cuda_products, "least_dense_tokens", lambda layers: 8)
    some, other = layer(bias=True), layer(bits=3)
    model = nn.Sequential(some, other)
    flatten_projections(model)
    write_out_for_many(model)
    x = mx.random.normal((8, 1, 128)).astype(mx.bfloat16)
    few, many = some(x[:7]), some(x)
    assert written == [some]
    assert many.shape == (8, 1, 96)
    assert mx.max(mx.abs(many[:7] - few)).item() <= 0.02 * mx.max(mx.abs(few)).item()
    other(x)
    assert written == [some]
