from __future__ import annotations

import pytest

from engine.mlx_backend.device import open_stream


@pytest.fixture(autouse=True, scope="module")
def stream() -> None:
    """An executor that was closed on this thread took its stream along."""
    open_stream()
