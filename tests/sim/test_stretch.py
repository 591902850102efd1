"""Steps taken at once are, to the last bit, the steps taken one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.core.config import parse_config
from engine.core.cost_model import UNFITTED
from engine.core.executor import CheckpointSizes, ModelInfo
from engine.core.request import Request
from engine.sim.simulate import Simulation, Wait, simulate
from engine.sim.stretch import Stretch, StretchScheduler
from tests.core.fakes import MODEL

CACHING = CheckpointSizes(token_bytes=10, capacity_bytes=40_000)
MODELS = {
    "ahead": MODEL,
    "waiting": replace(MODEL, runs_ahead=False),
    "two passes": replace(MODEL, one_pass=False),
    "caching": replace(MODEL, checkpoints=CACHING),
    "in layers": replace(MODEL, checkpoints=CACHING, num_layers=32),
}
CONFIGS = {
    "fixed": {"prefill_chunk_tokens": 64},
    "paced": {"prefill_policy": "paced", "pause_target_s": 0.3},
    "few slots": {"max_running_requests": 3, "max_waiting_requests": 6, "prefill_order": "shortest"},
    "seldom": {"prefill_chunk_tokens": 96, "decode_steps_per_chunk": 4},
}


def traffic(seed: int) -> list[Request]:
    rng = random.Random(seed)
    at_s, requests = 0.0, []
    for n in range(40):
        at_s += rng.expovariate(0.6)
        length = rng.choice((30, 60, 500))
        requests.append(
            Request(
                id=f"r{n}", prompt=[*range(length), n], max_tokens=rng.choice((1, 2, 20, 90)),
                arrived_at_s=at_s, boundaries=(length, length + 1) if n % 2 else (),
            )
        )  # fmt: skip
    return requests


def noise(seed: int) -> Iterator[float]:
    rng = random.Random(seed)
    while True:
        yield rng.lognormvariate(0.0, 0.1)


def run(model: ModelInfo, knobs: dict[str, object], abort_pause_s: float | None = None) -> Simulation:
    factors = noise(5)
    return simulate(
        traffic(3), parse_config(knobs), UNFITTED, model, noise=lambda: next(factors),
        abort_pause_s=abort_pause_s, waits={"r9": Wait("r4", 2.0), "r30": Wait("r9", 0.5)},
    )  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("config", CONFIGS)
def test_a_stretch_is_its_steps(model: str, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = run(MODELS[model], CONFIGS[config])
    monkeypatch.setattr(StretchScheduler, "num_alike", lambda self: 0)
    stepped = run(MODELS[model], CONFIGS[config])
    assert at_once.records == stepped.records
    assert at_once.plans == stepped.plans
    assert at_once.steps == stepped.steps
    assert any(isinstance(part, Stretch) for part in at_once.history)


@pytest.mark.parametrize("limit_s", [0.12, 0.2, 0.3])
def test_a_stretch_ends_at_the_pause_that_is_too_long(
    limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = run(MODEL, CONFIGS["fixed"], limit_s)
    monkeypatch.setattr(StretchScheduler, "num_alike", lambda self: 0)
    stepped = run(MODEL, CONFIGS["fixed"], limit_s)
    assert at_once.aborted
    assert at_once.records == stepped.records


def test_what_a_stretch_did_to_a_request_is_what_its_steps_would_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pause and its cause, which the engine tells clients."""
    at_once = timelines(monkeypatch)
    monkeypatch.setattr(StretchScheduler, "num_alike", lambda self: 0)
    assert at_once == timelines(monkeypatch)


def timelines(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    ended: list[object] = []
    end = StretchScheduler._end

    def noting(self: StretchScheduler, *args: object) -> object:
        event = end(self, *args)  # type: ignore[arg-type]
        ended.append(event)
        return event

    with monkeypatch.context() as patch:
        patch.setattr(StretchScheduler, "_end", noting)
        run(MODEL, CONFIGS["fixed"])
    return ended


def test_most_steps_are_taken_in_stretches() -> None:
    history = run(MODEL, CONFIGS["fixed"]).history
    in_stretches = sum(len(part.ends_at_s) for part in history if isinstance(part, Stretch))
    assert in_stretches > 0.5 * sum(1 for part in history for _ in part.plans())
