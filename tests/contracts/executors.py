"""The executors that the contract suite runs over. To add one, add a line to `EXECUTORS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.core.cost_model import CostModel
from engine.core.executor import CheckpointSizes, Executor, ModelInfo
from engine.mlx_backend.executor import MlxExecutor
from engine.mlx_backend.model import load_model
from engine.sim.executor import SimExecutor, VirtualClock
from engine.sim_backend import pseudo_random_answer
from tests.mlx_backend.tiny_models import ARCHITECTURES, make_tiny_model, quantise

MakeExecutor = Callable[[Path], Executor]


def _mlx(arch: str) -> MakeExecutor:
    return lambda directory: MlxExecutor(load_model(make_tiny_model(directory / arch, arch)))


def _quantised(directory: Path) -> Executor:
    """With its weights in 4 bits, as on a GPU; `load_model` would make floats of them here."""
    loaded = load_model(make_tiny_model(directory / "llama-4bit", "llama", intermediate_size=64))
    quantise(loaded.model)
    return MlxExecutor(loaded)


def _sim(_: Path) -> Executor:
    sizes = CheckpointSizes(token_bytes=256, capacity_bytes=1 << 20)
    info = ModelInfo("simulated", 2048, kv_capacity_tokens=1 << 20, checkpoints=sizes, num_layers=3)
    costs = CostModel(0.01, 0.001, 0.0, 0.02, 0.001, 0.0)
    return SimExecutor(info, costs, VirtualClock(), answer=pseudo_random_answer)


EXECUTORS: dict[str, MakeExecutor] = {"sim": _sim} | {f"mlx-{arch}": _mlx(arch) for arch in ARCHITECTURES}
EXECUTORS["mlx-llama-4bit"] = _quantised
