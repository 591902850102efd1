"""Whether a truth that was found out once still holds: it does as long as its sources are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]
# The scheduler, the simulator, the traffic, the space of the grid, and the world with its costs and noise.
_FOLDERS = ("engine/core", "engine/sim", "loadtests/traffic", "loadtests/profiles")
_FILES = (
    "tests/benchmarks/search_world.py",
    "tuner/evaluation/simulated.py",
    "tuner/evaluation/sizing.py",
    "tuner/search_space.py",
)


@cache
def decisive_sources() -> tuple[Path, ...]:
    """What the truth of `search_world` follows from."""
    found = [file for folder in _FOLDERS for file in (_ROOT / folder).rglob("*")]
    sources = sorted(file for file in found if file.suffix in (".py", ".yaml"))
    return (*sources, *(_ROOT / name for name in _FILES))


def fingerprint(files: Iterable[Path]) -> str:
    """Of the files' names and bytes."""
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]
