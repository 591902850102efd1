from __future__ import annotations

from engine.sim_backend import SIM_MODEL, SimBackend
from tests.server.live import Live
from tuner.engine_client import EngineClient, Keys
from tuner.served_model import context_tokens_of, model_info


def test_a_simulation_knows_the_model_that_is_served() -> None:
    with Live(SimBackend()) as live:
        entry = EngineClient(live.url, Keys()).model_entry()
    assert context_tokens_of(entry) == SIM_MODEL.context_tokens
    found = model_info(entry, SIM_MODEL.context_tokens)
    assert found.kv_capacity_tokens == SIM_MODEL.kv_capacity_tokens
    assert (found.one_pass, found.kv_block_tokens) == (SIM_MODEL.one_pass, SIM_MODEL.kv_block_tokens)


def test_other_servers_say_less_and_are_taken_as_usual() -> None:
    found = model_info({"id": "other"}, 4096)
    assert (found.name, found.context_tokens, found.one_pass) == ("other", 4096, True)
    assert found.kv_capacity_tokens > 1 << 30
