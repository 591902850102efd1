"""Tiny random models on disk, which `load_model` loads like any other.

A random model writes nonsense, but always the same nonsense for the same tokens, which is what tests of
scheduling and caching need. Weights are scaled so that next tokens differ from one another; with the
usual initialisation every token would be the same, and equality would prove nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
from mlx.utils import tree_flatten
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.mlx_backend.device import open_stream

VOCAB = 300
CONTEXT_TOKENS = 2048
_WEIGHT_SCALE = 0.35

_SPECIAL_TOKENS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT_TOKENS,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen3": {"model_type": "qwen3"},
    # Sliding windows of 16 tokens in all but every second layer.
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 16,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 8,
        "rope_local_base_freq": 10000.0,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    # Short convolutions with a state in one layer, attention in the other.
    "lfm2": {
        "model_type": "lfm2",
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1],
    },
    # A recurrent state-space model: no keys and values at all.
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 16,
        "state_size": 8,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
        "ssm_state_size": 8,
        "max_position_embeddings": CONTEXT_TOKENS,
    },
}


def make_tiny_model(directory: Path, arch: str = "llama", seed: int = 0, **overrides: Any) -> Path:
    """Writes a random float32 model with a byte-level tokenizer and a chat template; returns `directory`.

    Args:
        arch: a key of `ARCHITECTURES`.
        seed: of the weights.
        overrides: other values for keys of the config.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = _COMMON | ARCHITECTURES[arch] | overrides
    (directory / "config.json").write_text(json.dumps(config))
    _save_weights(directory, config, seed)
    _make_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config()))
    return directory


def quantise(model: nn.Module) -> None:
    """4-bit weights, in place; widths must be multiples of 32."""
    nn.quantize(model, group_size=32, bits=4)


def _save_weights(directory: Path, config: dict[str, Any], seed: int) -> None:
    open_stream()
    model, _ = mlx_lm.utils.load_model(directory, lazy=True, strict=False)
    key = mx.random.key(seed)
    weights = {}
    for name, array in sorted(tree_flatten(model.parameters())):
        key, own = mx.random.split(key)
        noise = mx.random.normal(array.shape, key=own) * _WEIGHT_SCALE
        weights[name] = noise + _norm_scale(name, array)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})


def _norm_scale(name: str, array: mx.array) -> float:
    """Norms multiply: around 1 they keep the signal, around 0 they would end it.

    Gemma's norms after a layer are made strong, because its output is tied to its input: with weak layers
    every next token would be the last one again.
    """
    if array.ndim != 1 or "norm" not in name:
        return 0.0
    return 8.0 if "post_feedforward" in name else 1.0


def _make_tokenizer() -> Tokenizer:
    """Every byte is a token; ids from 256 on are special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in _SPECIAL_TOKENS]
    )
    return tokenizer


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_TOKENS,
        "chat_template": _CHAT_TEMPLATE,
    }
