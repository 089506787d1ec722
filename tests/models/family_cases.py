"""Model families that are compared with transformers: a case for each switch that changes arithmetic.

A case is what transformers' configuration class is made with. What it then saves (config.json, names and shapes of
tensors) and answers lies in tests/golden, so that most tests need no torch; weights are drawn anew (NEP 19).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from random_models import F32
from tokentrail.checkpoints import Checkpoint, open_checkpoint

LENGTH = 40
"""Tokens of the text that is compared."""
VOCAB = 64

Shapes = dict[str, list[int]]


@dataclass(frozen=True)
class Case:
    config_class: str
    """transformers' class."""
    settings: dict[str, Any] = field(default_factory=dict)
    context: int = 4096
    """The longest context served, by which some kinds of RoPE are chosen."""
    matters: tuple[dict[str, Any], ...] = ()
    """Changes of config.json, each of which must change the answer: else the case would test nothing."""

    def tokens(self) -> list[int]:
        return np.random.RandomState(11).randint(0, VOCAB, LENGTH).tolist()


def settings(**changes: Any) -> dict[str, Any]:
    """A small model: four query heads over two KV heads."""
    return {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }


def rope(kind: str, theta: float = 10000.0, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **values}}


def alternating(layers: int, period: int) -> list[str]:
    """A full layer after `period` - 1 windowed ones."""
    return ["full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(layers)]


LONGROPE = {
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.6, 1.8, 1.9, 2.0],
    "long_factor": [1.2, 2.0, 3.5, 5.0, 8.0, 9.0, 10.0, 12.0],
    "original_max_position_embeddings": 32,
}

GEMMA2 = settings(
    head_dim=16,
    num_hidden_layers=4,
    sliding_window=8,
    query_pre_attn_scalar=24,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=3.0,
    tie_word_embeddings=True,
)
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e6}
GEMMA3 = settings(
    head_dim=32,
    num_hidden_layers=4,
    sliding_window=8,
    query_pre_attn_scalar=40,
    layer_types=alternating(4, 3),
    tie_word_embeddings=True,
    rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
)
PHI3 = {"num_hidden_layers": 2, "sliding_window": None}

CASES: dict[str, Case] = {
    "llama": Case("LlamaConfig", settings()),
    "llama-tied": Case("LlamaConfig", settings(tie_word_embeddings=True)),
    "llama-biases": Case("LlamaConfig", settings(attention_bias=True, mlp_bias=True)),
    "llama-wide-heads": Case("LlamaConfig", settings(head_dim=32, num_key_value_heads=4)),
    "llama-one-kv-head": Case("LlamaConfig", settings(num_key_value_heads=1)),
    "llama-linear-rope": Case("LlamaConfig", settings(**rope("linear", factor=4.0))),
    "llama-dynamic-rope": Case(
        "LlamaConfig", settings(**rope("dynamic", factor=4.0), max_position_embeddings=16), context=LENGTH
    ),
    "llama-dynamic-rope-short": Case(
        "LlamaConfig", settings(**rope("dynamic", factor=4.0), max_position_embeddings=64), context=64
    ),
    "llama-llama3-rope": Case(
        "LlamaConfig",
        settings(
            **rope(
                "llama3",
                500000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            )
        ),
    ),
    "llama-yarn-rope": Case(
        "LlamaConfig", settings(**rope("yarn", factor=4.0, original_max_position_embeddings=1024))
    ),
    "llama-yarn-rope-mscale": Case(
        "LlamaConfig",
        settings(
            **rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=32,
                mscale=1.0,
                mscale_all_dim=0.7,
                beta_fast=8.0,
                beta_slow=0.5,
                truncate=False,
            )
        ),
    ),
    "mistral": Case("MistralConfig", settings(sliding_window=8), matters=({"sliding_window": None},)),
    "ministral": Case(
        "MinistralConfig",
        settings(head_dim=16, sliding_window=8, num_hidden_layers=3, layer_types=alternating(3, 2)),
        matters=({"sliding_window": None}, {"layer_types": ["sliding_attention"] * 3}),
    ),
    "ministral3": Case(
        "Ministral3Config",
        settings(
            head_dim=16,
            **rope(
                "yarn",
                1e6,
                factor=16.0,
                original_max_position_embeddings=8,
                mscale=1.0,
                mscale_all_dim=1.0,
                llama_4_scaling_beta=0.4,
            ),
        ),
        matters=(
            rope(
                "yarn", 1e6, factor=16.0, original_max_position_embeddings=8, mscale=1.0, mscale_all_dim=1.0
            ),
        ),
    ),
    "internlm3": Case("InternLM3Config", settings(qkv_bias=True, bias=True, head_dim=16)),
    "qwen2": Case("Qwen2Config", settings()),
    "qwen2-window": Case(
        "Qwen2Config",
        settings(use_sliding_window=True, sliding_window=8, max_window_layers=1, num_hidden_layers=3),
        matters=({"use_sliding_window": False}, {"layer_types": ["sliding_attention"] * 3}),
    ),
    "qwen3": Case("Qwen3Config", settings(head_dim=32, tie_word_embeddings=True)),
    "qwen3-biases": Case(
        "Qwen3Config",
        settings(
            head_dim=16, attention_bias=True, use_sliding_window=True, sliding_window=8, max_window_layers=1
        ),
        matters=({"use_sliding_window": False},),
    ),
    "glm": Case("GlmConfig", settings(head_dim=32, attention_bias=True)),
    "glm-whole-heads": Case(
        "GlmConfig", settings(head_dim=16, attention_bias=False, partial_rotary_factor=1.0)
    ),
    "glm4": Case("Glm4Config", settings(head_dim=32, attention_bias=True)),
    "ernie4_5": Case("Ernie4_5Config", settings(head_dim=16, tie_word_embeddings=True)),
    "ernie4_5-biases": Case("Ernie4_5Config", settings(head_dim=32, use_bias=True)),
    "gemma": Case("GemmaConfig", settings(head_dim=32, tie_word_embeddings=True)),
    "gemma2": Case(
        "Gemma2Config",
        GEMMA2,
        matters=(
            {"sliding_window": None},
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
            {"query_pre_attn_scalar": 16},
            {"layer_types": alternating(4, 4)},
        ),
    ),
    "gemma2-biases": Case(
        "Gemma2Config",
        {**GEMMA2, "attention_bias": True, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": Case(
        "Gemma3TextConfig",
        GEMMA3,
        matters=(
            {"sliding_window": 40},
            {"query_pre_attn_scalar": 16},
            {"layer_types": alternating(4, 2)},
            {"rope_parameters": {**GEMMA3["rope_parameters"], "full_attention": PLAIN_ROPE}},
            {"rope_parameters": {**GEMMA3["rope_parameters"], "sliding_attention": PLAIN_ROPE}},
        ),
    ),
    "phi3": Case("Phi3Config", settings(**PHI3)),
    "phi3-window": Case(
        "Phi3Config", settings(**{**PHI3, "sliding_window": 8}), matters=({"sliding_window": None},)
    ),
    "phi3-longrope": Case("Phi3Config", settings(**PHI3, **rope("longrope", **LONGROPE)), context=4096),
    "phi3-longrope-short": Case(
        "Phi3Config",
        settings(**PHI3, **rope("longrope", **{**LONGROPE, "original_max_position_embeddings": 64})),
        context=64,
    ),
    "phi4-partial": Case(
        "Phi3Config",
        settings(
            **PHI3,
            **rope(
                "longrope",
                partial_rotary_factor=0.5,
                **{key: value[:4] if isinstance(value, list) else value for key, value in LONGROPE.items()},
            ),
        ),
    ),
    "smollm3": Case(
        "SmolLM3Config",
        settings(num_hidden_layers=4, no_rope_layer_interval=2),
        matters=({"no_rope_layers": [1, 1, 1, 1]}, {"no_rope_layers": [1, 1, 1, 0]}),
    ),
}


def weight(name: str, shape: list[int], random: np.random.RandomState, *, gemma: bool) -> F32:
    """Values by which activations stay near 1, attention is not flat, and every bias and norm counts."""
    values = random.standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        if name.endswith("norm.weight"):
            return values * np.float32(0.2) + np.float32(0 if gemma else 1)
        return values * np.float32(0.3)
    if "embed_tokens" in name:
        return values / np.float32(np.sqrt(shape[1])) if gemma else values
    gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 1.0
    return values * np.float32(gain / np.sqrt(shape[-1]))


def write_folder(folder: Path, config: dict[str, Any], shapes: Shapes, seed: int = 0) -> Path:
    """A checkpoint as transformers saves it: config.json and model.safetensors, in float32."""
    random = np.random.RandomState(seed)
    gemma = str(config["model_type"]).startswith("gemma")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data, at = [], 0
    for name in sorted(shapes):
        values = weight(name, shapes[name], random, gemma=gemma)
        data.append(values.tobytes())
        header[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"".join(data))
    return folder


def opened(case: dict[str, Any], folder: Path, **changes: Any) -> Checkpoint:
    """A saved case (config.json and shapes) as a folder that has been opened; `changes` are made to config.json."""
    return open_checkpoint(write_folder(folder, {**case["config"], **changes}, case["shapes"]))
