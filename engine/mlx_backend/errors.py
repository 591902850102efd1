"""Every error the MLX backend raises on purpose.

EvenflowError
├── ModelError     a model cannot be found, fetched or loaded
└── InstallError   the installed MLX packages cannot work together
"""

from __future__ import annotations

from engine.core.errors import EvenflowError


class ModelError(EvenflowError):
    """A model that cannot be found, fetched or loaded: one line with what was tried."""


class InstallError(EvenflowError):
    """Packages that overwrite each other's libraries: one line with the command that mends it."""
