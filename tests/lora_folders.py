"""Low-rank adapters for tests, in the folders that PEFT writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_folders import write_safetensors
from tokentrail.checkpoints import ModelConfig

F32 = npt.NDArray[np.float32]
Pairs = dict[str, tuple[F32, F32]]
"""A [rank, in] and B [out, rank] by the layer's name in the Hugging Face model."""

LAYERS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """[out, in] of a layer's linear parts."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, q),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }


def random_pairs(
    config: ModelConfig, *, rank: int = 4, parts: str = "q k v o gate up down", seed: int = 0
) -> Pairs:
    """Pairs for the named parts of every layer, about as large as what they are added to."""
    random = np.random.default_rng(seed)
    pairs = {}
    for layer in range(config.num_layers):
        for part in parts.split():
            n, k = layer_shapes(config)[part]
            a = (random.standard_normal((rank, k)) / np.sqrt(k)).astype(np.float32)
            b = (random.standard_normal((n, rank)) / np.sqrt(rank)).astype(np.float32)
            pairs[f"model.layers.{layer}.{LAYERS[part]}"] = (a, b)
    return pairs


def write_adapter(
    folder: Path, pairs: Pairs, *, tensors: Mapping[str, np.ndarray] | None = None, **settings: Any
) -> Path:
    """`tensors`: further ones; `settings`: of adapter_config.json, where `...` removes a key."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = next(iter(pairs.values()))[0].shape[0] if pairs else 1
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "bias": "none",
        "use_rslora": False,
        **settings,
    }
    (folder / "adapter_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    arrays = {}
    for name, (a, b) in pairs.items():
        arrays[f"base_model.model.{name}.lora_A.weight"] = a
        arrays[f"base_model.model.{name}.lora_B.weight"] = b
    write_safetensors(folder / "adapter_model.safetensors", {**arrays, **(tensors or {})})
    return folder
