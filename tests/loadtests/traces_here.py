"""Where the published sample traces are on this machine, if they are."""

from __future__ import annotations

import os
from pathlib import Path

BESIDE = Path(__file__).parents[2].parent / "shared" / "traces"
SAMPLES = Path(os.environ.get("EVENFLOW_TRACES") or BESIDE)
