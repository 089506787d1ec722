"""What fits: sizes the KV cache and the context from the memory there is, and says what would help when it does not."""

from __future__ import annotations

from dataclasses import dataclass

from tokentrail.checkpoints import Checkpoint, ModelConfig
from tokentrail.engine.config import EngineConfig
from tokentrail.models import activation_formats
from tokentrail.ops.backend import Backend, KvLayout
from tokentrail.ops.native import available_memory
from tokentrail.protocol import CapacityError, InvalidRequest

GIB = 1 << 30
DEFAULT_SHARE = 0.25
"""Of the free memory, what the KV cache takes when nobody says: a laptop has other things to do."""
SHORTEST = 512
"""A context cut to what fits, when nobody asked for its length, has so many tokens at least (or all of the model's)."""
PROMPT_LOGIT_ROWS = 64
"""Logit rows there are at least, so that prompt log-probabilities advance in useful chunks."""


@dataclass(frozen=True)
class Capacity:
    """The plan: a KV cache of so many blocks, a context length, and rows of logits."""

    kv: KvLayout
    draft_kv: KvLayout | None
    """The draft model's, with as many blocks."""
    max_model_len: int
    wanted_model_len: int
    """What was asked for, or the model's own; more than `max_model_len` where the cache holds less."""
    max_logit_rows: int


def plan_capacity(
    checkpoint: Checkpoint,
    backend: Backend,
    config: EngineConfig,
    *,
    draft: Checkpoint | None = None,
    free: int | None = None,
) -> Capacity:
    """Decide the KV cache's size and the context length.

    A block is one of the model's and one of the `draft` model's, if there is one. `free` bytes default to what the
    machine has. Raises `CapacityError` with the arithmetic and the flags that help when the weights, or a cache for one
    sequence of the asked length, do not fit; `InvalidRequest` when `max_model_len` is above the model's own.
    """
    model = checkpoint.config
    longest = model.max_position if config.max_model_len is None else config.max_model_len
    if longest < 1 or longest > model.max_position:
        raise InvalidRequest(
            f"--max-model-len must be from 1 to {model.max_position} (the model's context), not {longest}.",
            param="max_model_len",
        )
    dtype = "bfloat16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype

    def layout(blocks: int, model: ModelConfig = model) -> KvLayout:
        return KvLayout(
            dtype, model.num_layers, blocks, config.block_size, model.num_kv_heads, model.head_dim
        )

    block_bytes = layout(1).nbytes
    if draft is not None:
        block_bytes += layout(1, draft.config).nbytes
    free = available_memory() if free is None else free
    logit_rows = min(
        max(config.max_num_seqs, PROMPT_LOGIT_ROWS), max(config.max_num_batched_tokens, config.max_num_seqs)
    )
    fixed = sum(
        _weight_bytes(one, backend, config) + _activation_bytes(one, config, logit_rows)
        for one in (checkpoint, draft)
        if one is not None
    )
    budget = int(free * config.memory_utilization) - fixed
    wanted = longest
    one_sequence = -(-longest // config.block_size)
    all_sequences = one_sequence * config.max_num_seqs

    if config.kv_cache_memory is not None:
        blocks = min(config.kv_cache_memory // block_bytes, all_sequences)
        if blocks * block_bytes > free - fixed:
            raise CapacityError(
                f"{checkpoint.path}: --kv-cache-memory {_size(config.kv_cache_memory)} does not fit beside "
                f"{_size(fixed)} of weights and activations: {_size(free)} of memory is free. "
                "Ask for less, or use a smaller or more quantized model."
            )
    else:
        share = max(int(free * DEFAULT_SHARE) // block_bytes, one_sequence)
        blocks = min(share, all_sequences, max(budget, 0) // block_bytes)

    if blocks < one_sequence:
        fits = blocks * config.block_size
        if config.max_model_len is not None or fits < min(longest, SHORTEST):
            cache = one_sequence * block_bytes
            raise CapacityError(
                f"{checkpoint.path}: a context of {longest} tokens {_shortage(config, free, fixed, cache, fits)}"
            )
        longest = fits
    draft_kv = None if draft is None else layout(blocks, draft.config)
    return Capacity(layout(blocks), draft_kv, longest, wanted, logit_rows)


def _shortage(config: EngineConfig, free: int, fixed: int, cache: int, fits: int) -> str:
    """What is needed, what there is, and the flags that help: with the cache's size given, or sized from `free`."""
    if config.kv_cache_memory is not None:
        problem = f"needs {_size(cache)} of KV cache, --kv-cache-memory gives {_size(config.kv_cache_memory)}"
        more = ["give more with --kv-cache-memory"]
    else:
        share = config.memory_utilization
        problem = (
            f"needs {_size(fixed + cache)} ({_size(fixed)} weights and activations + {_size(cache)} KV cache), but "
            f"{_size(int(free * share))} may be used: {share:g} of {_size(free)} free memory"
        )
        more = ["use more of it with --gpu-memory-utilization", "lower --max-num-batched-tokens"]
    remedies = [f"shorten it with --max-model-len {fits}"] if fits else []
    text = ", ".join([*remedies, *more, "or use a smaller or more quantized model"])
    return f"{problem}. {text[0].upper()}{text[1:]}."


def _weight_bytes(checkpoint: Checkpoint, backend: Backend, config: EngineConfig) -> int:
    formats = activation_formats(checkpoint, backend, config.activation_dtype)
    matrices = sum(
        backend.packed_bytes(format, *checkpoint.tensors[name].shape) for name, format in formats.items()
    )
    vectors = sum(4 * t.shape[0] for t in checkpoint.tensors.values() if len(t.shape) == 1)
    return matrices + vectors


def _activation_bytes(checkpoint: Checkpoint, config: EngineConfig, logit_rows: int) -> int:
    """Buffers of a step: a bound, not an account (they are reused between layers)."""
    model = checkpoint.config
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    per_token = 5 * (4 * model.hidden_size + 2 * heads + 3 * model.intermediate_size)
    return config.max_num_batched_tokens * per_token + logit_rows * 4 * (
        model.vocab_size + 2 * model.hidden_size
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB else f"{nbytes / (1 << 20):.0f} MiB"
