from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models import activations

from engine.mlx_backend import cpu_math


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)) * scale


@pytest.mark.parametrize(
    ("length", "context"), [(1, 1), (1, 300), (2, 2), (7, 300), (130, 130), (257, 700), (64, 4000)]
)
def test_attention_is_mlx_attention(length: int, context: int) -> None:
    queries, keys, values = (
        random(2, 6, length, 8),
        random(2, 3, context, 8, seed=1),
        random(2, 3, context, 8),
    )
    mask = "causal" if length > 1 else None
    expected = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask=mask)
    found = cpu_math.causal_attention(queries, keys, values, scale=0.3)
    assert mx.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_large_scores_do_not_overflow() -> None:
    queries, keys, values = (random(1, 2, 40, 8, seed=seed, scale=60.0) for seed in range(3))
    expected = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask="causal")
    found = cpu_math.causal_attention(queries, keys, values, scale=1.0)
    assert mx.allclose(found, expected, rtol=1e-3, atol=1e-2)


def test_a_later_key_however_large_is_not_seen() -> None:
    queries = mx.ones((1, 1, 2, 4))
    keys = mx.concatenate([mx.ones((1, 1, 1, 4)), mx.full((1, 1, 1, 4), 1e4)], axis=2)
    values = mx.array([1.0, 2.0]).reshape(1, 1, 2, 1)
    found = cpu_math.causal_attention(queries, keys, values, scale=1.0)
    assert found.flatten().tolist() == pytest.approx([1.0, 2.0])


def test_swiglu_is_mlx_swiglu_over_the_whole_range() -> None:
    gate = mx.concatenate([mx.linspace(-200, 200, 4001), random(1000, scale=3.0)])
    x = random(gate.shape[0], seed=1)
    assert mx.allclose(cpu_math.swiglu(gate, x), activations.swiglu(gate, x), rtol=1e-5, atol=1e-6)
