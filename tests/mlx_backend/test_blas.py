from __future__ import annotations

import ctypes
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from engine.mlx_backend import BLAS, blas
from engine.mlx_backend.errors import InstallError

needs_binding = pytest.mark.skipif(BLAS.source == "built-in", reason="this MLX build is fast by itself")


@needs_binding
def test_mlx_multiplies_with_the_bound_library() -> None:
    """A symbol is looked up in the global scope first, so what is found there is what libmlx calls."""
    assert BLAS.warning is None
    bound = ctypes.CDLL(BLAS.path).cblas_sgemm
    found = ctypes.CDLL(None).cblas_sgemm
    assert ctypes.cast(bound, ctypes.c_void_p).value == ctypes.cast(found, ctypes.c_void_p).value


@needs_binding
def test_importing_mlx_too_early_is_said_in_one_line() -> None:
    code = "import mlx.core, engine.mlx_backend as b; print(b.BLAS.warning)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "50 times slower" in done.stdout
    assert "imported before" in done.stdout
    assert done.stdout.count("\n") == 1


@needs_binding
def test_without_a_library_the_warning_says_how_to_mend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(problems: list[str]) -> list[tuple[str, str]]:
        problems.append("none here")
        return []

    monkeypatch.setattr(blas, "_candidates", nothing)
    monkeypatch.delitem(sys.modules, "mlx.core")
    bound = blas.bind_blas()
    assert bound.path is None
    assert bound.warning is not None
    assert "none here" in bound.warning
    assert "apt install libopenblas0-pthread" in bound.warning


class _Distribution:
    def __init__(self, name: str) -> None:
        self.metadata = {"Name": name}


def test_two_mlx_builds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [_Distribution("mlx_cpu"), _Distribution("mlx-cuda-13")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: both)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(InstallError, match="pip uninstall"):
        blas.check_install()


@needs_binding
def test_the_renamed_copy_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = blas._unprefixed_openblas()
    made_at = first.stat().st_mtime_ns
    assert blas._unprefixed_openblas() == first
    assert first.stat().st_mtime_ns == made_at
    assert [path.name for path in first.parent.iterdir()] == [first.name]
