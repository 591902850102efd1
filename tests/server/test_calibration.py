from __future__ import annotations

from pathlib import Path

from engine.core.cost_model import UNFITTED, CostModel
from engine.cost_store import CostStore
from engine.sim_backend import SIM_MODEL, SimBackend
from tests.server.live import Live, chat

TRUE = CostModel(0.002, 2e-5, 0.0, 0.003, 0.0, 0.0)


def test_what_was_learned_is_there_after_a_restart(tmp_path: Path) -> None:
    kept = CostStore(tmp_path / "costs.json")
    kept.save("sim", TRUE)
    with Live(SimBackend(SIM_MODEL, TRUE), learned=kept) as live:
        assert live.service.engine.costs == TRUE


def test_the_cost_model_is_learned_from_the_servers_own_steps() -> None:
    with Live(SimBackend(SIM_MODEL, TRUE)) as live:
        assert live.service.engine.costs is None
        size = 0
        while live.service.engine.costs is None:
            size += 40
            live.http.post("/v1/chat/completions", json=chat(f"{size} " + "word " * size, max_tokens=4))
        learned = live.service.engine.costs
    # Loosely, for the machine may be busy; the point is that it is not the first guess any more.
    assert learned.prefill_seconds(1000) < UNFITTED.prefill_seconds(1000) / 2
    assert learned.prefill_seconds(1000) >= TRUE.prefill_seconds(1000) / 2
