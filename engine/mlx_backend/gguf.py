"""A Llama GGUF file as an ordinary mlx-lm model directory: weights, config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from engine.mlx_backend.errors import ModelError

# Part of the name a converted model is cached under: change it with what `convert_gguf` writes.
CONVERSION = "q4-f32"

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm"}

# GGUF blocks of both Q4_1 and Q8_0 hold 32 weights; the bits of each tensor follow from its shapes.
_QUANTIZATION = {"group_size": 32, "bits": 4}

# `tokenizer.ggml.token_type` of a control token.
_CONTROL_TOKEN = 3

# GPT-2's word pattern. Source: openai/gpt-2, encoder.py; SmolLM splits digits off before it.
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Writes `directory` (made here) so that mlx-lm can load it.

    Raises:
        ModelError: the file is of another architecture or tokenizer than this conversion knows.
    """
    loaded: Any = mx.load(str(gguf), return_metadata=True)
    tensors, metadata = loaded
    kind = (metadata.get("general.architecture"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("llama", "smollm"):
        raise ModelError(f"{gguf.name}: only Llama files with SmolLM's tokenizer convert, not {kind}")
    directory.mkdir(parents=True)
    weights = {_weight_name(name): _weight(tensor) for name, tensor in tensors.items()}
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write_json(directory / "config.json", _config(metadata))
    _tokenizer(metadata).save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(metadata))


def _weight_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, kind = name.split(".")
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    part, kind = name.split(".")
    return f"model.{_TOP_NAMES[part]}.{kind}"


def _weight(tensor: mx.array) -> mx.array:
    """Scales and norms in float32, which makes activations float32: SmolLM2's reach 25,000, where half
    precision is coarse and, in MLX's CPU kernels, overflows into nonsense. The packed integers stay.
    """
    return tensor if tensor.dtype == mx.uint32 else tensor.astype(mx.float32)


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    def number(key: str) -> Any:
        return metadata[key].item()

    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": number("llama.embedding_length"),
        "num_hidden_layers": number("llama.block_count"),
        "intermediate_size": number("llama.feed_forward_length"),
        "num_attention_heads": number("llama.attention.head_count"),
        "num_key_value_heads": number("llama.attention.head_count_kv"),
        # Read as float32; more digits than it holds would be noise.
        "rms_norm_eps": float(f"{number('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "vocab_size": number("llama.vocab_size"),
        "max_position_embeddings": number("llama.context_length"),
        "rope_theta": number("llama.rope.freq_base"),
        # GGUF permutes query and key rows for interleaved rotary pairs.
        "rope_traditional": True,
        "tie_word_embeddings": True,
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": number("tokenizer.ggml.eos_token_id"),
        "quantization": _QUANTIZATION,
    }


def _tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(_GPT2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]

    def token(role: str) -> str:
        return str(tokens[metadata[f"tokenizer.ggml.{role}_token_id"].item()])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "model_max_length": metadata["llama.context_length"].item(),
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2))
