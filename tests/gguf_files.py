"""Small GGUF files for tests, written with the `gguf` package: a whole Llama model in a few kilobytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tokentrail.checkpoints import ModelConfig

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 32, 64, 2, 1, 16

Arrays = dict[str, np.ndarray]


def llama_tensors(vocab: int, layers: int = 1, tied: bool = True, seed: int = 0) -> Arrays:
    """GGUF name → float32 array, in GGUF's names and with random values."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    tensors = {"token_embd.weight": matrix(vocab, HIDDEN), "output_norm.weight": matrix(HIDDEN)}
    if not tied:
        tensors["output.weight"] = matrix(vocab, HIDDEN)
    for layer in range(layers):
        shapes = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INTERMEDIATE, HIDDEN),
            "ffn_up": (INTERMEDIATE, HIDDEN),
            "ffn_down": (HIDDEN, INTERMEDIATE),
        }
        for name, shape in shapes.items():
            tensors[f"blk.{layer}.{name}.weight"] = matrix(*shape)
    return tensors


def llama_metadata(layers: int = 1) -> dict[str, Any]:
    return {
        "general.name": "Tiny",
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": layers,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD_DIM,
    }


def write_model(
    path: Path,
    *,
    tokens: Sequence[str],
    kind: str = "gpt2",
    pre: str | None = "gpt-2",
    merges: Sequence[str] | None = (),
    scores: Sequence[float] | None = None,
    types: Sequence[int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    quantize: Callable[[str, np.ndarray], gguf.GGMLQuantizationType] | None = None,
    architecture: str = "llama",
    split_tensors: int = 0,
) -> Path:
    """Write a model; with `split_tensors`, in parts of so many tensors, the first of which is returned.

    In `metadata`, a value of None removes a key that `llama_metadata` has.

    Arrays of bytes, rows of blocks, stay as they are; `quantize` says of which type.

    Python's bool, int (as uint32), float (float32), str and lists of them become GGUF values.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_tensors)
    for key, value in {**llama_metadata(), **(metadata or {})}.items():
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.add_tokenizer_model(kind)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(tokens))
    if scores is not None:
        writer.add_token_scores(list(scores))
    if types is not None:
        writer.add_token_types(list(types))
    if merges is not None and (merges or kind == "gpt2"):
        writer.add_token_merges(list(merges) or ["a b"])
    for name, array in (llama_tensors(len(tokens)) if tensors is None else tensors).items():
        target = quantize(name, array) if quantize else gguf.GGMLQuantizationType.F32
        if target == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, array)
        else:
            blocks = array if array.dtype == np.uint8 else gguf.quantize(array, target)
            writer.add_tensor(name, blocks, raw_dtype=target)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if not split_tensors else sorted(path.parent.glob(f"{path.stem}-?????-of-?????.gguf"))[0]


def model_keys(config: ModelConfig) -> dict[str, Any]:
    """What every architecture's files say of a model, without the architecture's name before each key."""
    return {
        "context_length": config.max_position,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.rope.dim,
        "rope.freq_base": config.rope.theta,
        **({"attention.sliding_window": config.sliding_window} if config.sliding_window else {}),
    }
