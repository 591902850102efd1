from __future__ import annotations

from dataclasses import replace

from engine.sim_backend import SIM_MODEL, SimBackend
from tests.server.live import Live
from tuner.engine_client import EngineClient, Keys
from tuner.served_model import context_tokens_of, model_info


def test_a_simulation_knows_the_model_that_is_served() -> None:
    slow = replace(SIM_MODEL, one_pass=False, runs_ahead=False)
    with Live(SimBackend(slow)) as live:
        entry = EngineClient(live.url, Keys()).model_entry()
    assert context_tokens_of(entry) == slow.context_tokens
    assert model_info(entry, slow.context_tokens) == replace(slow, checkpoints=None)


def test_other_servers_say_less_and_are_taken_as_usual() -> None:
    found = model_info({"id": "other"}, 4096)
    assert (found.name, found.context_tokens, found.one_pass) == ("other", 4096, True)
    assert found.kv_capacity_tokens > 1 << 30
