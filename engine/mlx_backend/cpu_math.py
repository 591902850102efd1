"""Attention and SwiGLU for MLX's CPU build, where `exp` is what prefill waits for.

MLX's CPU `exp` takes 9 ns an element on x86; with OpenBLAS bound, that is 80 % of attention at depth
1,000 and half of the feed-forward layer of a 135M model. The same polynomial written with plain
arithmetic is compiled to vector instructions: 1.5 ns (our measurement, November 2026). Attention also
leaves out the keys a block of queries cannot see, and multiplies each KV head once for all the query
heads that share it.
"""

from __future__ import annotations

from functools import reduce

import mlx.core as mx

# Adding it moves a float's integer part into its lowest mantissa bits (round to nearest), which spares
# a `floor`. It works below 2**22; we stay below 128.
_ROUND = 12582912.0  # 1.5 * 2**23
_LOG2_E = 1.4426950408889634
_MIN_EXPONENT = -126.0
# Turns those bits, shifted to the exponent's place, into a power of two: (127 - bits of _ROUND) << 23.
_EXPONENT_BIAS = ((127 - 0x4B400000) << 23) & 0xFFFFFFFF

# Taylor series of 2**x, enough for |x| <= 1/2 in float32: relative error 2e-6, as MLX's own.
_POWER_SERIES = (
    1.540353039338161e-04,
    1.333355814642844e-03,
    9.618129107628477e-03,
    5.550410866482158e-02,
    2.402265069591007e-01,
    6.931471805599453e-01,
    1.0,
)

# Scores computed at once. Fewer stay in cache and skip more of the causal triangle; more make longer
# matrix products.
_BLOCK_SCORES = 1 << 20
_MIN_BLOCK_QUERIES, _MAX_BLOCK_QUERIES = 16, 128


def _exp(x: mx.array) -> mx.array:
    """e**x of float32, for x <= 88; below -87 it is as good as zero."""
    exponent = mx.maximum(x * _LOG2_E, _MIN_EXPONENT)
    rounded = exponent + _ROUND
    fraction = exponent - (rounded - _ROUND)
    power = mx.array(_POWER_SERIES[0], mx.float32)
    for coefficient in _POWER_SERIES[1:]:
        power = power * fraction + coefficient
    bits = (mx.view(rounded, mx.uint32) << 23) + mx.array(_EXPONENT_BIAS, mx.uint32)
    return power * mx.view(bits, mx.float32)


@mx.compile
def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x in float32."""
    # Beyond 80 the sigmoid is 0 in float32 either way, and exp stays finite.
    return gate * x / (1 + _exp(mx.minimum(-gate, 80.0)))


@mx.compile
def _weights(scores: mx.array, highest: mx.array) -> mx.array:
    return _exp(scores - highest)


def causal_attention(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    """Attention of the last `length` positions to themselves and everything before them, in float32.

    Args:
        queries: `(batch, heads, length, head_dim)`.
        keys: `(batch, kv_heads, context, head_dim)`; values likewise.

    Returns:
        `(batch, heads, length, value_dim)`.
    """
    heads, length = queries.shape[1:3]
    first = keys.shape[2] - length
    size = _block_queries(heads * keys.shape[2])
    blocks = [
        _attend(queries[:, :, start : start + size] * scale, keys, values, first + start)
        for start in range(0, length, size)
    ]
    return blocks[0] if len(blocks) == 1 else mx.concatenate(blocks, axis=2)


def _block_queries(scores_per_query: int) -> int:
    return max(_MIN_BLOCK_QUERIES, min(_MAX_BLOCK_QUERIES, _BLOCK_SCORES // scores_per_query))


def _attend(queries: mx.array, keys: mx.array, values: mx.array, first: int) -> mx.array:
    """Attention of neighbouring queries, the first of which stands at position `first`."""
    batch, heads, length, _ = queries.shape
    grouped = queries.reshape(batch, keys.shape[1], -1, queries.shape[-1])
    parts = [slice(first, first + length)] if first == 0 else [slice(0, first), slice(first, first + length)]
    # (batch, kv_heads, heads / kv_heads * length, keys of the part)
    scores = [grouped @ keys[:, :, part].swapaxes(-1, -2) for part in parts]
    scores[-1] = _hide_future(scores[-1], length)
    highest = reduce(mx.maximum, (mx.max(part, axis=-1, keepdims=True) for part in scores))
    weights = [_weights(part, highest) for part in scores]
    total = reduce(mx.add, (_row_sums(part) for part in weights))
    mixed = reduce(mx.add, (w @ values[:, :, part] for w, part in zip(weights, parts, strict=True)))
    return (mixed / total).reshape(batch, heads, length, -1)


def _hide_future(scores: mx.array, length: int) -> mx.array:
    """Takes from each query the keys after it; the queries repeat every `length` rows."""
    if length == 1:
        return scores
    visible = mx.tril(mx.ones((length, length), mx.bool_))
    return mx.where(mx.tile(visible, (scores.shape[-2] // length, 1)), scores, -mx.inf)


def _row_sums(weights: mx.array) -> mx.array:
    """`sum(axis=-1, keepdims=True)` as a matrix product, which is three times faster here."""
    return weights @ mx.ones((weights.shape[-1], 1))
