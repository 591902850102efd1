"""What work cost here last time, by model: so that the first prediction after a restart is a good one."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config_store import write_atomically
from engine.core.cost_model import CostModel
from engine.core.json_text import parse_json

if TYPE_CHECKING:
    # It imports numpy, which would cost every start of the command line a tenth of a second.
    from engine.core.cost_fit import KindError

_BACKEND = ("mlx", "mlx-lm")


def circumstances() -> dict[str, str]:
    """What costs hold for, besides the model: this host, and the versions of what computes."""
    host = f"{platform.node()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {"host": host, **{name: _version(name) for name in _BACKEND}}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


class CostStore:
    """Learned cost models in one small file; None keeps nothing. Used from one thread at a time."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def load(self, model: str) -> CostModel | None:
        """What was learned of a model; None when nothing was, or on another host or version, or the file is
        of no use.
        """
        entry = self._read().get(model)
        try:
            if entry is None or entry["circumstances"] != circumstances():
                return None
            costs = CostModel(**{name: float(value) for name, value in entry["costs"].items()})
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return None
        return costs if all(0 <= c < math.inf for c in costs.coefficients()) else None

    def save(self, model: str, costs: CostModel, errors: Iterable[KindError] = ()) -> None:
        """Args: errors: how well the costs predict steps they were not fitted to.

        Raises:
            OSError.
        """
        if not self._path:
            return
        entry = {
            "costs": dataclasses.asdict(costs),
            "errors": {error.kind: error.error for error in errors},
            "circumstances": circumstances(),
        }
        write_atomically(self._path, json.dumps(self._read() | {model: entry}, indent=1))

    def _read(self) -> dict[str, Any]:
        try:
            models = parse_json(self._path.read_bytes()) if self._path else {}
        except (OSError, ValueError):
            return {}  # learned anew within seconds; not worth a word
        return models if isinstance(models, dict) else {}
