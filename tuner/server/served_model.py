"""What a server says of its model in `GET /v1/models`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.core.executor import CheckpointSizes, ModelInfo

_UNLIMITED_KV = 1 << 40


def context_tokens_of(entry: Mapping[str, Any]) -> int | None:
    """Prompt and output together; None when the server does not say."""
    context = entry.get("context_tokens") or entry.get("max_model_len")
    return None if context is None else int(context)


def _checkpoints(said: Any) -> CheckpointSizes | None:
    """None when the server does not say: then every prompt is simulated as read in full."""
    if not isinstance(said, Mapping):
        return None
    return CheckpointSizes(
        token_bytes=int(said["token_bytes"]),
        windows=tuple((int(tokens), int(num_bytes)) for tokens, num_bytes in said.get("windows", ())),
        state_bytes=int(said.get("state_bytes", 0)),
        capacity_bytes=int(said.get("capacity_bytes", 0)),
    )


def model_info(entry: Mapping[str, Any], context_tokens: int) -> ModelInfo:
    """What a simulation must know of the model; what the server does not say is taken as usual.

    Args:
        entry: of the response's `data`; ours has an object `evenflow`.
    """
    said = entry.get("evenflow")
    said = said if isinstance(said, Mapping) else {}
    return ModelInfo(
        name=str(entry["id"]),
        context_tokens=context_tokens,
        checkpoints=_checkpoints(said.get("checkpoints")),
        kv_capacity_tokens=int(said.get("kv_capacity_tokens", _UNLIMITED_KV)),
        kv_block_tokens=int(said.get("kv_block_tokens", 1)),
        one_pass=bool(said.get("one_pass", True)),
        batches=bool(said.get("batches", True)),
        runs_ahead=bool(said.get("runs_ahead", True)),
        chunk_grid_tokens=int(said.get("chunk_grid_tokens", 1)),
        num_layers=int(said.get("num_layers", 1)),
    )
