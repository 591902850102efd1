"""What work cost here last time, by model: so that the first prediction after a restart is a good one."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

from engine.config_store import write_atomically
from engine.core.cost_model import CostModel
from engine.core.json_text import parse_json


class CostStore:
    """Learned cost models in one small file; None keeps nothing. Used from one thread at a time."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def load(self, model: str) -> CostModel | None:
        """What was learned of a model; None when nothing was, or the file is of no use."""
        values = self._read().get(model)
        try:
            costs = CostModel(**{name: float(value) for name, value in values.items()}) if values else None
        except (AttributeError, TypeError, ValueError, OverflowError):
            return None
        return costs if costs and all(0 <= c < math.inf for c in costs.coefficients()) else None

    def save(self, model: str, costs: CostModel) -> None:
        """Raises: OSError."""
        if self._path:
            models = self._read() | {model: dataclasses.asdict(costs)}
            write_atomically(self._path, json.dumps(models, indent=1))

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            models = parse_json(self._path.read_bytes()) if self._path else {}
        except (OSError, ValueError):
            return {}  # learned anew within seconds; not worth a word
        return models if isinstance(models, dict) else {}
