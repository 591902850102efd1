"""The engine on MLX: the only package that imports `mlx` and `mlx_lm`.

Importing it binds a fast BLAS, because that works only before the first import of `mlx.core`, and
the package's `__init__` is the one place that is sure to run earlier than any of its modules.
"""

from __future__ import annotations

from engine.mlx_backend.blas import bind_blas
from engine.mlx_backend.malloc import keep_freed_memory

BLAS = bind_blas()
keep_freed_memory()
