from __future__ import annotations

from dataclasses import replace

from engine.serve import ready_lines
from engine.sim_backend import SIM_MODEL


def test_a_model_that_cannot_batch_is_announced_with_what_that_means() -> None:
    assert "\n" not in ready_lines("http://x", "sim", SIM_MODEL)
    _, note = ready_lines("http://x", "sim", replace(SIM_MODEL, batches=False)).splitlines()
    assert "n times as long" in note
