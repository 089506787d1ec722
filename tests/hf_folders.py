"""Small Hugging Face folders for tests: config.json and .safetensors files, written without other libraries."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 32, 64, 2, 1, 16, 24

Arrays = dict[str, np.ndarray]

_DTYPES = {
    "f4": "F32",
    "f2": "F16",
    "u2": "BF16",
    "i4": "I32",
    "i8": "I64",
    "u1": "U8",
    "i1": "I8",
    "f8": "F64",
}


def bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 → the bits of bfloat16 as uint16, cut off."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(
    path: Path, tensors: Mapping[str, np.ndarray], *, metadata: Mapping[str, str] | None = None
) -> Path:
    """Arrays of NumPy's types; uint16 stands for bfloat16."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in tensors.items():
        end = offset + array.nbytes
        dtype = _DTYPES[array.dtype.str[1:]]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    return write_raw(
        path, header, b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    )


def write_raw(path: Path, header: Any, data: bytes) -> Path:
    """A file with any header: an object that becomes JSON, or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def llama_config(**changes: Any) -> dict[str, Any]:
    """config.json of a one-layer Llama. In `changes`, a value of `...` removes a key."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}


def llama_tensors(layers: int = 1, *, tied: bool = False, biases: bool = False, seed: int = 0) -> Arrays:
    """Stored name → float32 array."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN), "model.norm.weight": matrix(HIDDEN)}
    if not tied:
        tensors["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    shapes = {
        "input_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    for layer in range(layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(*shape)
            if biases and name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
                tensors[f"model.layers.{layer}.{name}.bias"] = matrix(shape[0])
    return tensors


def write_folder(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    shards: int = 1,
    files: Mapping[str, Any] | None = None,
) -> Path:
    """A model's folder. `shards`: above 1, with an index. `files`: further ones, objects as JSON, texts as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(llama_config() if config is None else config))
    arrays = dict(llama_tensors() if tensors is None else tensors)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", arrays, metadata={"format": "pt"})
    else:
        write_shards(folder, arrays, shards)
    for name, content in (files or {}).items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def write_shards(folder: Path, tensors: Arrays, count: int) -> Sequence[Path]:
    names = sorted(tensors)
    where = {}
    paths = []
    for shard in range(count):
        part = names[shard::count]
        file = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        paths.append(write_safetensors(folder / file, {name: tensors[name] for name in part}))
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(a.nbytes for a in tensors.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return paths
