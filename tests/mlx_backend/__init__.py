"""Importing the backend here binds BLAS before any test module imports MLX."""

import engine.mlx_backend  # noqa: F401
