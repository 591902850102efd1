"""Causal attention on CUDA in shapes that repeat.

MLX leaves it to cuDNN, which builds a plan for each new shape: 39 ms on an H200 (our measurement, November
2026), and every chunk of a prompt of a new length is a new shape. So lengths are rounded up to a grid, and
keys and values are copied out of the row's cache, whose size is part of the shape too. What is added is never
seen: causal attention aligns the last query with the last key, so keys after the end are seen by the queries
added there alone, and queries added in front see less than the first one does.
"""

from __future__ import annotations

import os
from typing import Any

import mlx.core as mx

from engine.mlx_backend.device import on_cuda

# Plans that MLX holds (256 by itself): the grid has hundreds of shapes for contexts of 32,000 tokens.
os.environ.setdefault("MLX_CUDA_SDPA_CACHE_SIZE", "1024")

GRID_TOKENS = 256
_DTYPES = (mx.float16, mx.bfloat16)
_MOST_HEAD_DIM = 128  # beyond it cuDNN is not asked (MLX, supports_sdpa_cudnn)


def fits(queries: mx.array, keys: mx.array, cache: Any, mask: Any) -> bool:
    """Whether cuDNN would build a plan for this: the attention of a chunk to what came before it."""
    causal = isinstance(mask, str) and mask == "causal" and queries.shape[2] > 1
    plain = not hasattr(cache, "bits") and queries.dtype in _DTYPES
    return causal and plain and queries.shape[-1] <= _MOST_HEAD_DIM and on_cuda()


def causal_attention(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, sinks: mx.array | None
) -> mx.array:
    """Attention of the last positions to themselves and everything before them.

    Args:
        queries: `(1, heads, length, head_dim)`.
        keys: `(1, kv_heads, context, head_dim)`; values likewise.
    """
    length, context = queries.shape[2], keys.shape[2]
    after = -context % GRID_TOKENS
    # No more queries than keys: then both are as long, and on the grid.
    before = min(-(length + after) % GRID_TOKENS, context - length)
    out = mx.fast.scaled_dot_product_attention(
        _padded(queries, before, after), _padded(keys, 0, after), _padded(values, 0, after),
        scale=scale, mask="causal", sinks=sinks,
    )  # fmt: skip
    return out[:, :, before : before + length]


def _padded(tokens: mx.array, before: int, after: int) -> mx.array:
    """With zeros around, in memory of its own."""
    if before or after:
        return mx.pad(tokens, [(0, 0), (0, 0), (before, after), (0, 0)])
    return mx.contiguous(tokens)
