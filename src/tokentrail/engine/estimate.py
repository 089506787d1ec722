"""What a model takes of memory when it runs: one arithmetic, for the engine's plan (capacity.py) and for
`tokentrail inspect`.

The model's forward pass is recorded over shapes alone, so that weights and buffers are those of the program that
would run, whatever its family. Every layer keeps the keys and values of all positions: a sliding window saves no
memory yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from tokentrail.checkpoints import QUANTIZATIONS, Checkpoint, LoraAdapter, ModelConfig, quantize_checkpoint
from tokentrail.checkpoints.ggml_types import GGML_TYPES
from tokentrail.engine.config import EngineConfig
from tokentrail.models import describe_model
from tokentrail.ops.backend import Backend, KvLayout, Limits
from tokentrail.ops.native import available_memory
from tokentrail.ops.program import Program
from tokentrail.protocol import ModelFileError

PROMPT_LOGIT_ROWS = 64
"""Logit rows there are at least, so that prompt log-probabilities advance in useful chunks."""
WEIGHT_FORMATS = {
    "FP32": "F32",
    "FP16": "F16",
    "BF16": "BF16",
    "int8": "Q8_0",
    "Q6_K": "Q6_K",
    "Q5_K": "Q5_K",
    "Q4_K": "Q4_K",
    "int4": "Q4_0",
}
"""Formats that models are usually given in, largest first; the names are those of people, the values those of files."""


_NO_BYTES = np.zeros(0, np.uint8)
GGML_BLOCKS = {type.name: type.block_size for type in GGML_TYPES.values()}


@dataclass(frozen=True)
class Footprint:
    """One model under one configuration, in bytes."""

    program: Program
    """Its forward pass over `MatrixShape`s."""
    weights: int
    buffers: int
    """Activations of the largest step, logits, and the threads' scratch."""
    kv: KvLayout
    """Of one block."""


@dataclass(frozen=True)
class Estimate:
    """What the model, and the one that drafts for it, take of the memory that is free."""

    models: tuple[Footprint, ...]
    limits: Limits
    free: int
    share: float
    """Of the free memory, what may be taken."""

    @property
    def weights(self) -> int:
        return sum(model.weights for model in self.models)

    @property
    def buffers(self) -> int:
        return sum(model.buffers for model in self.models)

    @property
    def fixed(self) -> int:
        """All but the KV cache."""
        return self.weights + self.buffers

    @property
    def block_size(self) -> int:
        return self.models[0].kv.block_size

    @property
    def block_bytes(self) -> int:
        return sum(model.kv.nbytes for model in self.models)

    @property
    def usable(self) -> int:
        return int(self.free * self.share)

    @property
    def blocks(self) -> int:
        """Blocks of KV cache that fit beside the rest."""
        return max(self.usable - self.fixed, 0) // self.block_bytes

    def blocks_of(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds."""
        return -(-tokens // self.block_size)

    def cache_bytes(self, tokens: int, sequences: int = 1) -> int:
        return sequences * self.blocks_of(tokens) * self.block_bytes

    def longest_context(self, max_position: int) -> int:
        """Tokens of the longest sequence that fits, `max_position` at most; 0: not even one block does."""
        return min(self.blocks * self.block_size, max_position)

    def most_sequences(self, tokens: int) -> int:
        """Sequences of `tokens` tokens each whose KV cache fits."""
        return self.blocks // self.blocks_of(tokens)


def logit_rows(config: EngineConfig) -> int:
    """Rows of logits that a step can have."""
    return min(
        max(config.max_num_seqs, PROMPT_LOGIT_ROWS), max(config.max_num_batched_tokens, config.max_num_seqs)
    )


def kv_layout(model: ModelConfig, config: EngineConfig, blocks: int) -> KvLayout:
    dtype = "bfloat16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    return KvLayout(dtype, model.num_layers, blocks, config.block_size, model.num_kv_heads, model.head_dim)


def estimate_memory(
    checkpoint: Checkpoint,
    backend: Backend,
    config: EngineConfig,
    *,
    draft: Checkpoint | None = None,
    adapters: Sequence[LoraAdapter] = (),
    free: int | None = None,
) -> Estimate:
    """Of `free` bytes; None: what this process may still take of the machine.

    Raises `ModelFileError` when the model is of no known family or lacks a tensor.
    """
    limits = Limits(config.max_num_batched_tokens, config.max_num_seqs, logit_rows(config))
    models = [_footprint(checkpoint, backend, config, limits, adapters)]
    if draft is not None:
        models.append(_footprint(draft, backend, config, limits, ()))
    return Estimate(
        tuple(models), limits, available_memory() if free is None else free, config.memory_utilization
    )


def _footprint(
    checkpoint: Checkpoint,
    backend: Backend,
    config: EngineConfig,
    limits: Limits,
    adapters: Sequence[LoraAdapter],
) -> Footprint:
    model = describe_model(checkpoint, backend, activation_dtype=config.activation_dtype, adapters=adapters)
    kv = kv_layout(checkpoint.config, config, 1)
    buffers = backend.buffer_bytes(model.program, kv, limits, checkpoint.config.vocab_size)
    return Footprint(model.program, model.weight_bytes, buffers, kv)


def weights_in(checkpoint: Checkpoint, backend: Backend, format: str) -> int | None:
    """Bytes of the packed weights, were all matrices stored in `format`; None where rows do not divide into its
    blocks, or the backend has no kernel for it.
    """
    total = 0
    for tensor in checkpoint.tensors.values():
        if len(tensor.shape) != 2:
            total += 4 * tensor.shape[0]
            continue
        blocks = GGML_BLOCKS.get(format, 1)
        if tensor.shape[1] % blocks:
            return None
        try:
            total += backend.packed_bytes(format, *tensor.shape)
        except ValueError:
            return None
    return total


def formats_of(checkpoint: Checkpoint, backend: Backend) -> Iterator[tuple[str, str, int]]:
    """(name, format, bytes of all weights in it) of the `WEIGHT_FORMATS` that this model can have, largest first."""
    for name, format in WEIGHT_FORMATS.items():
        nbytes = weights_in(checkpoint, backend, format)
        if nbytes is not None:
            yield name, format, nbytes


def in_format(checkpoint: Checkpoint, format: str) -> Checkpoint:
    """The model as it would be with all matrices stored in `format`: for its sizes, since it has no bytes."""
    tensors = {
        name: tensor
        if len(tensor.shape) != 2
        else replace(tensor, format=format, stored=_NO_BYTES, column_order=None)
        for name, tensor in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)


def quantizations(checkpoint: Checkpoint, config: EngineConfig) -> Iterator[tuple[str, Checkpoint]]:
    """(kind, the model in it) of what `--quantization` could make of one that is not quantized yet."""
    if config.quantization in QUANTIZATIONS:
        return
    for kind in QUANTIZATIONS:
        try:
            quantized, _ = quantize_checkpoint(checkpoint, kind)
        except ModelFileError:
            return
        yield kind, quantized


def quantized_weights(
    checkpoint: Checkpoint, backend: Backend, config: EngineConfig
) -> Iterator[tuple[str, int]]:
    """(kind, bytes of the weights) of the same."""
    for kind, quantized in quantizations(checkpoint, config):
        model = describe_model(quantized, backend, activation_dtype=config.activation_dtype)
        yield kind, model.weight_bytes


def changed(config: EngineConfig, **fields: object) -> EngineConfig:
    """The configuration with other values, to see what they would bring."""
    return msgspec.structs.replace(config, **fields)
