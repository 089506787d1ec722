"""What a checkpoint says of itself: sizes, types, parameters by part."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokentrail.checkpoints.layout import ROPE_TENSORS

if TYPE_CHECKING:
    from tokentrail.checkpoints import Checkpoint, ModelConfig
    from tokentrail.text import Tokenizer

PARTS = ("embedding", "attention", "feed_forward", "experts", "shared_experts", "router", "norms", "head")
_ATTENTION = frozenset({"q", "k", "v", "o", "sinks"})
_NO_PARAMETERS = frozenset(ROPE_TENSORS)
"""Tensors that hold constants, not what was learned."""


def facts(checkpoint: Checkpoint, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """What the file says, as `--json` prints it. Sizes in bytes. Without its `tokenizer`, tokens have no texts."""
    from tokentrail.ops.backend import KV_DTYPES, KvLayout

    config = checkpoint.config
    formats: dict[str, dict[str, int]] = {}
    parts = dict.fromkeys(PARTS, 0)
    for name, tensor in checkpoint.tensors.items():
        count = math.prod(tensor.shape)
        entry = formats.setdefault(tensor.format, {"tensors": 0, "parameters": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["parameters"] += count
        entry["bytes"] += tensor.nbytes
        if name not in _NO_PARAMETERS:
            parts[part_of(name)] += count
    kv = {
        dtype: KvLayout(dtype, config.num_layers, 1, 16, config.num_kv_heads, config.head_dim)
        for dtype in KV_DTYPES
    }
    source = checkpoint.tokenizer
    return {
        "path": str(checkpoint.path),
        "file_bytes": size_on_disk(checkpoint.path),
        "name": checkpoint.name,
        "model_type": checkpoint.model_type,
        "architecture": config.architecture,
        "quantization": checkpoint.quantization,
        "parameters": sum(parts.values()),
        "active_parameters": sum(parts.values()) - _idle_experts(config, parts["experts"]),
        "parameters_by_part": {part: count for part, count in parts.items() if count},
        "tensor_bytes": checkpoint.nbytes,
        "tensors_by_type": dict(sorted(formats.items(), key=lambda item: -item[1]["bytes"])),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "experts": config.moe.num_experts if config.moe else 0,
        "experts_per_token": config.moe.experts_per_token if config.moe else 0,
        "vocab_size": config.vocab_size,
        "tied_embeddings": config.tie_embeddings,
        "context_length": config.max_position,
        "rope": {"theta": config.rope.theta, "scaling": config.rope.scaling},
        "sliding_window": config.sliding_window,
        "windowed_layers": sum(config.window(layer) > 0 for layer in range(config.num_layers)),
        "kv_bytes_per_token": {dtype: layout.bytes_per_token for dtype, layout in kv.items()},
        "tokenizer": {"kind": source.kind, "pre": source.pre},
        "bos_token_id": source.bos_token_id if tokenizer is None else tokenizer.bos_token_id,
        "eos_token_ids": {
            str(id): "" if tokenizer is None else tokenizer.id_to_token(id) for id in checkpoint.eos_token_ids
        },
        "has_chat_template": checkpoint.chat_template is not None,
        "named_chat_templates": sorted(checkpoint.named_templates),
    }


def part_of(name: str) -> str:
    """The part of the model that a tensor (by its canonical name) belongs to: one of `PARTS`."""
    words = name.split(".")
    if words[0] != "layers":
        return {"embed": "embedding", "head": "head"}.get(words[0], "norms")
    kind = words[2]
    if kind == "experts":
        return "experts"
    if kind == "shared":
        return "shared_experts"
    if kind.startswith(("router", "shared_gate")):
        return "router"
    if kind.endswith("norm"):
        return "norms"
    return "attention" if kind in _ATTENTION else "feed_forward"


def _idle_experts(config: ModelConfig, parameters: int) -> int:
    """Of the experts' parameters, those that a token passes over."""
    if config.moe is None:
        return 0
    return parameters - parameters * config.moe.experts_per_token // config.moe.num_experts


def size_on_disk(path: Path) -> int:
    """Bytes of a file, or of the files of a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return path.stat().st_size
