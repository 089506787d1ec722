"""Mixtures of experts in GGUF files: their metadata keys, and the stacks that hold all experts' matrices.

Keys: docs/gguf.md in the ggml repository. What files do not say is what llama.cpp computes for the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tokentrail.checkpoints.errors import CONVERT_AGAIN, file_error, quoted
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import ModelConfig, MoeConfig, Tensor

MAX_EXPERTS = 1 << 12
MAX_MATRICES = 1 << 20
"""Of all experts in all layers: bounds what opening a file can ask for."""


def _moe(metadata: Metadata, prefix: str, *, size: int | None = None) -> MoeConfig:
    """The keys that all architectures share. `size`: of an expert, where the file does not say it."""
    experts = metadata.integer(prefix + "expert_count", low=1, high=MAX_EXPERTS)
    scale = metadata.number(prefix + "expert_weights_scale", low=0, high=1e6, default=0.0)
    return MoeConfig(
        experts,
        metadata.integer(prefix + "expert_used_count", low=1, high=min(experts, 256)),
        metadata.integer(prefix + "expert_feed_forward_length", low=1, high=1 << 20, default=size),
        scale=scale or 1.0,
    )


def mixtral(metadata: Metadata, prefix: str, config: ModelConfig) -> MoeConfig:
    return _moe(metadata, prefix, size=config.intermediate_size)


def qwen(metadata: Metadata, prefix: str, config: ModelConfig, *, shared: bool) -> MoeConfig:
    """Qwen2-MoE (`shared`), whose weights are not divided by their sum, and Qwen3-MoE, whose are."""
    chosen = metadata.integer(prefix + "expert_used_count", low=1, high=256)
    moe = _moe(metadata, prefix, size=max(1, config.intermediate_size // chosen))
    if not shared:
        return moe
    size = metadata.integer(
        prefix + "expert_shared_feed_forward_length", low=1, high=1 << 20, default=config.intermediate_size
    )
    return replace(moe, normalize=False, shared_intermediate_size=size, shared_gate=True)


def ernie(metadata: Metadata, prefix: str, config: ModelConfig) -> MoeConfig:
    moe = _moe(metadata, prefix)
    shared = metadata.integer(prefix + "expert_shared_count", low=0, high=1 << 10, default=0)
    size = metadata.integer(
        prefix + "expert_shared_feed_forward_length",
        low=0,
        high=1 << 20,
        default=shared * moe.intermediate_size,
    )
    dense = metadata.integer(prefix + "leading_dense_block_count", low=0, high=1 << 16, default=0)
    step = metadata.integer(prefix + "interleave_moe_layer_step", low=1, high=1 << 16, default=1)
    layers = tuple(i >= dense and (i + 1) % step == 0 for i in range(config.num_layers))
    return replace(moe, shared_intermediate_size=size, layers=layers)


def gpt_oss(metadata: Metadata, prefix: str, config: ModelConfig) -> MoeConfig:
    return replace(_moe(metadata, prefix, size=config.intermediate_size), scoring="softmax_of_chosen")


def take_apart(
    path: Path, config: ModelConfig, tensors: Mapping[str, Tensor], stored_names: Mapping[str, str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Stacks of experts as matrices (or vectors of biases) of their own, views; and the names of all in the file.

    Raises `ModelFileError` for a stack of another height than the configuration has experts.
    """
    out: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    for name, tensor in tensors.items():
        prefix, stack, part = name.partition(".experts.")
        if stack and not part[0].isdigit():
            parts = _experts(path, config, tensor, prefix, part, stored_names[name])
        elif name.endswith(".shared_gate") and len(tensor.shape) == 1:
            parts = {name: replace(tensor, shape=(1, *tensor.shape))}
        else:
            parts = {name: tensor}
        for own in parts:
            if own in out:
                problem = f"tensors {quoted(names[own])} and {quoted(stored_names[name])} are the same one"
                raise file_error(path, problem, CONVERT_AGAIN)
            names[own] = stored_names[name]
        out |= parts
        if len(out) > MAX_MATRICES:
            raise file_error(path, f"holds more than {MAX_MATRICES} matrices", "Use another model.")
    return out, names


def _experts(
    path: Path, config: ModelConfig, stack: Tensor, prefix: str, part: str, stored: str
) -> dict[str, Tensor]:
    count = config.moe.num_experts if config.moe is not None else 0
    if len(stack.shape) < 2 or stack.shape[0] != count:
        problem = f"tensor {quoted(stored)} has the shape {stack.shape}, but the metadata say {count} experts"
        raise file_error(path, problem, CONVERT_AGAIN)
    shape = stack.shape[1:]
    nbytes = stack.nbytes // count
    if nbytes * count != stack.nbytes:
        raise file_error(path, f"tensor {quoted(stored)} does not divide into experts", CONVERT_AGAIN)
    experts = {}
    for e in range(count):
        name = f"{prefix}.experts.{e}.{part}"
        experts[name] = Tensor(
            name, shape, stack.format, stack.data[e * nbytes : (e + 1) * nbytes], stack.release
        )
    return experts
