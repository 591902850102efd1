"""What is exchanged in mlx-lm's model code: two functions that its model modules call by name.

- `scaled_dot_product_attention` learns about passes over several rows (`row_caches`); causal attention goes
  to `cpu_math` on a CPU in float32, and to `cuda_attention` on CUDA.
- `swiglu`, on a CPU, is `cpu_math`'s.

Everything else passes through to mlx-lm's own functions, so other users of a module notice nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import activations, base

from engine.mlx_backend import cpu_math, cuda_attention
from engine.mlx_backend.device import on_cpu
from engine.mlx_backend.row_caches import RowKVCaches, attend_rows

_library_attention = base.scaled_dot_product_attention
_library_swiglu = activations.swiglu


def adapt_model(model: nn.Module) -> None:
    """Exchanges the functions in the modules that this model's classes come from."""
    for module in _modules_of(model):
        if getattr(module, "scaled_dot_product_attention", None) is _library_attention:
            module.scaled_dot_product_attention = attention  # type: ignore[attr-defined]
        if on_cpu() and getattr(module, "swiglu", None) is _library_swiglu:
            module.swiglu = swiglu  # type: ignore[attr-defined]


def _modules_of(model: nn.Module) -> Iterator[ModuleType]:
    names = {type(part).__module__ for part in model.modules()}
    return (sys.modules[name] for name in names if name.startswith("mlx_lm.models."))


def attention(
    queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
) -> mx.array:
    """mlx-lm's attention, for one cache or those of several rows; arguments as there."""
    if isinstance(cache, RowKVCaches):
        options = {"cache": None, "scale": scale, "sinks": sinks}
        return attend_rows(attention, cache.layout, queries, keys, values, mask, **options)
    if _fits_cpu_math(queries, cache, mask, sinks):
        return cpu_math.causal_attention(queries, keys, values, scale)
    if cuda_attention.fits(queries, keys, cache, mask):
        return cuda_attention.causal_attention(queries, keys, values, scale, sinks)
    output: mx.array = _library_attention(
        queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks
    )
    return output


def _fits_cpu_math(queries: mx.array, cache: Any, mask: Any, sinks: Any) -> bool:
    causal = mask == "causal" if isinstance(mask, str) else mask is None and queries.shape[2] == 1
    plain = causal and sinks is None and not hasattr(cache, "bits")
    return plain and queries.dtype == mx.float32 and on_cpu()


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """mlx-lm's SwiGLU; arguments as there."""
    return cpu_math.swiglu(gate, x) if gate.dtype == mx.float32 else _library_swiglu(gate, x)
