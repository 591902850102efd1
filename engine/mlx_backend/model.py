"""Loading a model: name or path in, weights on the device and a tokenizer out."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache

from engine.core.executor import CheckpointSizes, ModelInfo
from engine.default_model import DEFAULT_MODEL
from engine.mlx_backend import BLAS
from engine.mlx_backend.blas import check_install
from engine.mlx_backend.cache_dir import cache_dir, make_once
from engine.mlx_backend.checkpoints import checkpoint_sizes
from engine.mlx_backend.device import memory_bytes, on_cpu, open_stream
from engine.mlx_backend.errors import ModelError
from engine.mlx_backend.fetch import default_gguf, hub_snapshot
from engine.mlx_backend.gguf import CONVERSION, convert_gguf
from engine.mlx_backend.text import Tokenizer

_log = logging.getLogger(__name__)

# For models whose config does not say. Chosen, not measured: more than a model was trained on gives nonsense,
# and few that are served today were trained on less.
_FALLBACK_CONTEXT_TOKENS = 4096

# Part of the device's memory that weights and KV may fill; activations, the allocator's slack and
# everybody else on the machine need the rest. Chosen, not measured.
_MEMORY_SHARE = 0.75

# Part of what the weights leave of it that checkpoints of prefixes may fill; the rest is for requests.
# Chosen, not measured: its worth depends on who shares how much, and `prefix_cache_bytes` sets it live.
_CHECKPOINT_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights on the device, with what is needed to turn text into their tokens and back."""

    model: nn.Module
    tokenizer: Tokenizer
    info: ModelInfo


def load_model(name: str | Path = DEFAULT_MODEL) -> LoadedModel:
    """Loads the default model, a model directory or a hub id, downloading it when it is not here yet.

    On a CPU quantised and half-precision weights become float32: only float32 products go through
    BLAS there, the others run at 1–5 GFLOP/s (our measurement, November 2026).

    Raises:
        ModelError: no such model, or its files cannot be used.
        InstallError: two MLX builds are installed at once.
    """
    check_install()
    if BLAS.warning:
        _log.warning(BLAS.warning)
    open_stream()
    directory = find_model(name)
    try:
        model, config = mlx_lm.utils.load_model(directory, lazy=True)
        tokenizer = Tokenizer.from_directory(directory, _eos_tokens(config))
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        said = str(error).strip() or type(error).__name__
        raise ModelError(f"cannot load {name}: {said.splitlines()[0]}") from error
    if on_cpu():
        model = mlx_lm.utils.dequantize_model(model)
        model.set_dtype(mx.float32)
    # Evaluated here: a lazy array can be computed only on the thread that made it.
    mx.eval(model.parameters())
    return LoadedModel(model, tokenizer, _model_info(str(name), directory, model, config))


def find_model(name: str | Path) -> Path:
    """The directory of a model, made or downloaded if need be.

    Raises:
        ModelError: it is neither the default model, a model directory nor a model of the hub.
    """
    if name == DEFAULT_MODEL:
        target = cache_dir() / "models" / f"{DEFAULT_MODEL}-{CONVERSION}"
        return make_once(target, lambda directory: convert_gguf(default_gguf(), directory))
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists() or str(name).startswith((".", "/", "~")) or str(name).count("/") != 1:
        raise ModelError(
            f"no model {str(name)!r}: give a model directory, a hub id (owner/name) or {DEFAULT_MODEL}"
        )
    return hub_snapshot(str(name))


def _eos_tokens(config: dict[str, Any]) -> Sequence[int]:
    eos = config.get("eos_token_id")
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)


def _model_info(name: str, directory: Path, model: nn.Module, config: dict[str, Any]) -> ModelInfo:
    text_config = config.get("text_config") or config
    context = text_config.get("max_position_embeddings") or _FALLBACK_CONTEXT_TOKENS
    shown = directory.name if Path(name).expanduser().is_dir() else name
    free_bytes = _free_bytes(model)
    checkpoints = _checkpoint_sizes(model, int(free_bytes * _CHECKPOINT_SHARE))
    kept_bytes = checkpoints.capacity_bytes if checkpoints else 0
    kv_tokens = int((free_bytes - kept_bytes) / kv_bytes_per_token(model))
    return ModelInfo(shown, int(context), max(int(context), kv_tokens), checkpoints)


def _free_bytes(model: nn.Module) -> float:
    """What the weights leave for caches."""
    weights: int = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    return max(0.0, float(memory_bytes() * _MEMORY_SHARE - weights))


def _checkpoint_sizes(model: nn.Module, capacity_bytes: int) -> CheckpointSizes | None:
    return checkpoint_sizes(_read_caches(model, 2), capacity_bytes)


def kv_bytes_per_token(model: nn.Module) -> float:
    """What one more token of context adds to a request's caches. At least 1.

    Taken from the caches themselves (shapes only, nothing is computed), so that latent, windowed and
    recurrent layers count as what they are.
    """
    step: int = KVCache.step  # the caches grow in steps of this
    shorter, longer = (_cache_bytes(model, num_tokens) for num_tokens in (step, 2 * step))
    return max(1.0, (longer - shorter) / step)


def _cache_bytes(model: nn.Module, num_tokens: int) -> int:
    return sum(cache.nbytes for cache in _read_caches(model, num_tokens))


def _read_caches(model: nn.Module, num_tokens: int) -> list[Any]:
    """Caches that have read so many tokens: their shapes, for nothing is computed."""
    caches: list[Any] = make_prompt_cache(model)
    model(mx.zeros((1, num_tokens), mx.int32), cache=caches)
    return caches
