from __future__ import annotations

from dataclasses import replace

from engine.core.executor import CheckpointSizes
from engine.sim_backend import SIM_MODEL, SimBackend
from tests.server.live import Live
from tuner.server.engine_client import EngineClient, Keys
from tuner.server.served_model import context_tokens_of, model_info


def test_a_simulation_knows_the_model_that_is_served() -> None:
    sizes = CheckpointSizes(token_bytes=100, windows=((64, 7),), state_bytes=9, capacity_bytes=1 << 20)
    slow = replace(
        SIM_MODEL, one_pass=False, runs_ahead=False, checkpoints=sizes, chunk_grid_tokens=256, num_layers=61
    )
    with Live(SimBackend(slow)) as live:
        entry = EngineClient(live.url, Keys()).model_entry()
    assert context_tokens_of(entry) == slow.context_tokens
    assert model_info(entry, slow.context_tokens) == slow


def test_other_servers_say_less_and_are_taken_as_usual() -> None:
    found = model_info({"id": "other"}, 4096)
    assert (found.name, found.context_tokens, found.one_pass) == ("other", 4096, True)
    assert found.kv_capacity_tokens > 1 << 30
