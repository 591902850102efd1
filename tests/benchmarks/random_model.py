"""A Llama of any shape with random weights, which computes as long as a trained one; or a real model."""

from __future__ import annotations

import argparse
import time

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import llama

from engine.core.executor import ModelInfo
from engine.mlx_backend.model import LoadedModel, load_model

# Small enough that activations stay finite through any number of layers.
_WEIGHT_SCALE = 0.02


def add_shape_flags(parser: argparse.ArgumentParser) -> None:
    """Defaults are an 8B-class Llama in 4 bits."""
    parser.add_argument("--model", help="a model that `engine serve` takes, instead of random weights")
    shape = parser.add_argument_group("model shape")
    shape.add_argument("--layers", type=int, default=32)
    shape.add_argument("--hidden", type=int, default=4096)
    shape.add_argument("--heads", type=int, default=32)
    shape.add_argument("--kv-heads", type=int, default=8)
    shape.add_argument("--ffn", type=int, default=14336)
    shape.add_argument("--vocab", type=int, default=128256)
    shape.add_argument("--bits", type=int, default=4, help="0 leaves the weights in their own type")
    shape.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])


def build(shape: argparse.Namespace) -> LoadedModel:
    """The model, computed. `shape.vocab` is its vocabulary afterwards."""
    if shape.model:
        loaded = load_model(shape.model)
        shape.vocab = loaded.model.args.vocab_size
        return loaded
    config = {
        "model_type": "llama",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }
    started_at_s = time.perf_counter()
    model = llama.Model(llama.ModelArgs.from_dict(config))
    dtype = getattr(mx, shape.dtype)
    model.update(
        tree_map(lambda w: (mx.random.normal(w.shape) * _WEIGHT_SCALE).astype(dtype), model.parameters())
    )
    if shape.bits:
        nn.quantize(model, group_size=64, bits=shape.bits)
    mx.eval(model.parameters())
    print(f"built in {time.perf_counter() - started_at_s:.1f} s on {mx.default_device()}", flush=True)
    info = ModelInfo("random", context_tokens=131072, kv_capacity_tokens=1 << 20)
    return LoadedModel(model, None, info)  # type: ignore[arg-type]
