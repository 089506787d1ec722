"""GGUF files of every architecture, with random weights: what llama.cpp and we read must be the same model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gguf_files import model_keys, write_model
from random_models import F32, random_weights, small_config
from tokentrail.checkpoints import ModelConfig, RopeConfig
from tokentrail.checkpoints.gguf_architectures import LAYER_TENSORS

VOCAB, CONTEXT = 64, 256
GLOBAL_NAMES = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
LAYER_NAMES = {name: stored for stored, name in LAYER_TENSORS.items()}


@dataclass(frozen=True)
class Case:
    architecture: str
    config: ModelConfig
    """What the file must be read as; but for RoPE's pairing, which no weight shows."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Metadata that only this architecture has, without its prefix."""
    biases: tuple[str, ...] = ()
    """Matrices that have one."""
    fused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Stored name → the parts it holds."""
    tensors: dict[str, F32] = field(default_factory=dict)
    seed: int = 1

    def write(self, path: Path) -> Path:
        config = self.config
        weights = random_weights(config, seed=self.seed, biases=True)
        stored = dict(self.tensors)
        for name, values in weights.items():
            stem = name.removesuffix(".bias")
            kind = "bias" if name.endswith(".bias") else "weight"
            part = stem.rpartition(".")[2]
            if kind == "bias" and part not in self.biases:
                continue
            if stem in GLOBAL_NAMES:
                stored[f"{GLOBAL_NAMES[stem]}.{kind}"] = values
            elif not any(part in parts for parts in self.fused.values()):
                stored[f"blk.{stem.split('.')[1]}.{LAYER_NAMES[part]}.{kind}"] = values
        for layer in range(config.num_layers):
            for name, parts in self.fused.items():
                for kind in ("", ".bias"):
                    if kind and parts[0] not in self.biases:
                        continue
                    values = np.concatenate([weights[f"layers.{layer}.{part}{kind}"] for part in parts])
                    stored[f"blk.{layer}.{name}{kind or '.weight'}"] = values
        keys = {
            **model_keys(config),
            **self.keys,
        }
        llama_keys = {f"llama.{key}": None for key in keys}  # those that `write_model` would add
        return write_model(
            path,
            tokens=[f"<{i}>" for i in range(VOCAB)],
            types=[1] * VOCAB,
            architecture=self.architecture,
            metadata={**llama_keys, **{f"{self.architecture}.{key}": value for key, value in keys.items()}},
            tensors=stored,
        )


def config(family: str = "llama", **changes: Any) -> ModelConfig:
    rope = changes.pop("rope", RopeConfig(dim=16))
    return small_config(architecture=family, vocab_size=VOCAB, max_position=CONTEXT, rope=rope, **changes)


QKV_BIASES = ("q", "k", "v")
GATE_UP = {"ffn_up": ("gate", "up")}
HALF = RopeConfig(dim=8)
SCALED = {"embedding_scale": 8.0, "tie_embeddings": True, "sliding_window": 8}
FACTORS = {
    "rope_factors_short.weight": np.linspace(1, 2, 8).astype(np.float32),
    "rope_factors_long.weight": np.linspace(1.5, 12, 8).astype(np.float32),
}
GEMMA3 = config(
    "gemma3",
    **SCALED,
    num_layers=6,
    head_dim=32,
    rope=RopeConfig(dim=32, theta=1e6, scaling="linear", factor=4.0),
    rope_local=RopeConfig(dim=32),
    windowed_layers=(True, True, True, True, True, False),
)

CASES: dict[str, Case] = {
    "llama": Case("llama", config()),
    "llama-freqs": Case(
        "llama", config(), tensors={"rope_freqs.weight": np.linspace(1, 8, 8).astype(np.float32)}
    ),
    "llama-yarn": Case(
        "llama",
        config(),
        keys={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "llama-linear": Case("llama", config(), keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "mistral3": Case(
        "mistral3",
        config(),
        keys={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.4,
        },
    ),
    "internlm2": Case("internlm2", config()),
    "qwen2": Case("qwen2", config(tie_embeddings=True), biases=QKV_BIASES),
    "qwen3": Case("qwen3", config("qwen3", head_dim=32, rope=RopeConfig(dim=32, theta=1e6))),
    "ernie4_5": Case("ernie4_5", config(tie_embeddings=True, rope=RopeConfig(dim=16, theta=500000.0))),
    "smollm3": Case(
        "smollm3",
        config(num_layers=5, unrotated_layers=(False, False, False, True, False), tie_embeddings=True),
    ),
    "chatglm": Case(
        "chatglm", config(rope=HALF), biases=QKV_BIASES, fused={"attn_qkv": QKV_BIASES, **GATE_UP}
    ),
    "glm4": Case("glm4", config("glm4", rope=HALF), biases=QKV_BIASES, fused=GATE_UP),
    "phi3": Case("phi3", config(), fused={"attn_qkv": QKV_BIASES, **GATE_UP}),
    "phi3-long": Case(
        "phi3",
        config(),
        keys={"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.2},
        fused={"attn_qkv": QKV_BIASES, **GATE_UP},
        tensors=FACTORS,
    ),
    "phi3-short": Case(
        "phi3",
        config(),
        keys={"rope.scaling.original_context_length": CONTEXT, "rope.scaling.attn_factor": 1.2},
        fused={"attn_qkv": QKV_BIASES, **GATE_UP},
        tensors=FACTORS,
    ),
    "gemma": Case("gemma", config("gemma1", embedding_scale=8.0, tie_embeddings=True)),
    "gemma2": Case(
        "gemma2",
        config(
            "gemma2",
            **SCALED,
            num_layers=4,
            head_dim=32,
            rope=RopeConfig(dim=32),
            windowed_layers=(True, False, True, False),
            attention_softcap=2.0,
            logit_softcap=3.0,
        ),
        keys={"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": Case("gemma3", GEMMA3, keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "gemma3-pattern": Case(
        "gemma3",
        replace(
            GEMMA3,
            rope=RopeConfig(dim=32, theta=1e6),
            rope_local=RopeConfig(dim=32, theta=5000.0),
            windowed_layers=(True, True, False, True, True, False),
        ),
        keys={"attention.sliding_window_pattern": 3, "rope.freq_base_swa": 5000.0},
    ),
}
