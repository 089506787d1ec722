"""What fits: sizes the KV cache and the context from the memory there is, and says what would help when it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tokentrail.checkpoints import Checkpoint, LoraAdapter
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.estimate import (
    Estimate,
    changed,
    estimate_memory,
    formats_of,
    in_format,
    kv_layout,
    quantizations,
)
from tokentrail.ops.backend import Backend, KvLayout
from tokentrail.protocol import CapacityError, InvalidRequest

GIB = 1 << 30
DEFAULT_SHARE = 0.25
"""Of the free memory, what the KV cache takes when nobody says: a laptop has other things to do."""
SHORTEST = 512
"""A context cut to what fits, when nobody asked for its length, has so many tokens at least (or all of the model's)."""
USEFUL = 4096
"""A smaller format is advised together with a shorter context if so many tokens (or the context asked for) fit then."""
SMALLER_STEP = 128
"""Tokens of a step that is advised where buffers are what does not fit."""


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
    adapters: Sequence[LoraAdapter] = (),
    free: int | None = None,
) -> Capacity:
    """Decide the KV cache's size and the context length.

    A block is one of the model's and one of the `draft` model's, if there is one. `free` bytes default to what the
    machine has. Raises `CapacityError` with the arithmetic and the flags that help when the weights, or a cache for one
    sequence of the asked length, do not fit; `InvalidRequest` when `max_model_len` is above the model's own.
    """
    model = checkpoint.config
    wanted = longest = model.max_position if config.max_model_len is None else config.max_model_len
    if longest < 1 or longest > model.max_position:
        raise InvalidRequest(
            f"--max-model-len must be from 1 to {model.max_position} (the model's context), not {longest}.",
            param="max_model_len",
        )
    estimate = estimate_memory(checkpoint, backend, config, draft=draft, adapters=adapters, free=free)
    one_sequence = estimate.blocks_of(longest)
    all_sequences = one_sequence * config.max_num_seqs

    if config.kv_cache_memory is not None:
        blocks = min(config.kv_cache_memory // estimate.block_bytes, all_sequences)
        if blocks * estimate.block_bytes > estimate.free - estimate.fixed:
            remedies = ["ask for less"] if estimate.fixed + estimate.block_bytes <= estimate.free else []
            remedies += _smaller_formats(checkpoint, backend, config, draft, adapters, estimate, longest)
            raise CapacityError(
                f"{checkpoint.path}: --kv-cache-memory {_size(config.kv_cache_memory)} does not fit beside "
                f"{_parts(estimate)}: {_size(estimate.free)} of memory is free. {_sentence(remedies)}"
            )
    else:
        share = max(int(estimate.free * DEFAULT_SHARE) // estimate.block_bytes, one_sequence)
        blocks = min(share, all_sequences, estimate.blocks)

    if blocks < one_sequence:
        fits = blocks * config.block_size
        if config.max_model_len is not None or fits < min(longest, SHORTEST):
            problem = _shortage(config, estimate, longest)
            remedies = [*_remedies(checkpoint, backend, config, draft, adapters, estimate, longest, fits)]
            raise CapacityError(
                f"{checkpoint.path}: a context of {longest} tokens {problem}. {_sentence(remedies)}"
            )
        longest = fits
    return Capacity(
        kv_layout(model, config, blocks),
        None if draft is None else kv_layout(draft.config, config, blocks),
        longest,
        wanted,
        estimate.limits.logit_rows,
    )


def _parts(estimate: Estimate) -> str:
    return f"{_size(estimate.weights)} of weights and {_size(estimate.buffers)} of buffers"


def _shortage(config: EngineConfig, estimate: Estimate, context: int) -> str:
    """What is needed and what there is: with the cache's size given, or sized from the free memory."""
    cache = estimate.cache_bytes(context)
    if config.kv_cache_memory is not None:
        given = _size(config.kv_cache_memory)
        return f"needs {_size(cache)} of KV cache, --kv-cache-memory gives {given}"
    return (
        f"needs {_size(estimate.fixed + cache)} ({_size(estimate.weights)} weights + {_size(estimate.buffers)} "
        f"buffers + {_size(cache)} KV cache), but {_size(estimate.usable)} may be used: {estimate.share:g} of "
        f"{_size(estimate.free)} free memory"
    )


def _remedies(
    checkpoint: Checkpoint,
    backend: Backend,
    config: EngineConfig,
    draft: Checkpoint | None,
    adapters: Sequence[LoraAdapter],
    estimate: Estimate,
    context: int,
    fits: int,
) -> Iterator[str]:
    """What would make the context fit, each by itself, as far as it would; `fits` tokens do as it is."""
    if fits:
        yield f"shorten it with --max-model-len {fits}"
    given = config.kv_cache_memory

    def helps(**fields: object) -> bool:
        other = estimate_memory(
            checkpoint,
            backend,
            changed(config, **fields),
            draft=draft,
            adapters=adapters,
            free=estimate.free,
        )
        cache = other.cache_bytes(context)
        return cache <= given if given is not None else other.fixed + cache <= other.usable

    if estimate.models[0].kv.dtype != "int8" and helps(kv_cache_dtype="int8"):
        yield "keep keys and values in 8 bits with --kv-cache-dtype int8"
    if given is not None:
        yield "give more with --kv-cache-memory"
    else:
        fewer, smaller = {"max_num_seqs": 1}, {"max_num_batched_tokens": SMALLER_STEP}
        if config.max_num_seqs > 1 and helps(**fewer):
            yield "run fewer sequences with --max-num-seqs"
        if config.max_num_batched_tokens > SMALLER_STEP and helps(**smaller):
            yield f"compute smaller steps with --max-num-batched-tokens {SMALLER_STEP}"
        if estimate.share < 1 and estimate.fixed + estimate.cache_bytes(context) <= estimate.free:
            yield "use more of the free memory with --gpu-memory-utilization"
        if draft is not None:
            yield "leave out --speculative-model"
    if given is None or estimate.fixed > estimate.free:
        yield from _smaller_formats(checkpoint, backend, config, draft, adapters, estimate, context)
    else:
        yield "use a smaller model"


def _smaller_formats(
    checkpoint: Checkpoint,
    backend: Backend,
    config: EngineConfig,
    draft: Checkpoint | None,
    adapters: Sequence[LoraAdapter],
    estimate: Estimate,
    context: int,
) -> Iterator[str]:
    """What the model would have to be quantized to while it is loaded, or be stored in, for the whole context to
    fit, or else for a useful part of it: the largest format that does.
    """
    own = estimate.models[0].weights
    stored = [known for known in formats_of(checkpoint, backend) if known[2] < own]

    def choices() -> Iterator[tuple[str, int, Callable[[], Estimate]]]:
        """What to do, the least that the weights then take, and the whole estimate, which costs a while."""

        def estimated(other: Checkpoint, **fields: object) -> Estimate:
            return estimate_memory(
                other, backend, changed(config, **fields), draft=draft, adapters=adapters, free=estimate.free
            )

        least = {name: weights for name, _, weights in stored}
        for kind, quantized in quantizations(checkpoint, config):
            words = f"quantize it on loading with --quantization {kind}"
            yield words, least.get(kind, 0), partial(estimated, quantized, quantization=kind)
        for name, format, weights in stored:
            words = f"use the model in {_label(name, format)}"
            yield words, weights, partial(estimated, in_format(checkpoint, format))

    for wanted in (context, min(context, USEFUL)):
        for words, least, whole in choices():
            if least + estimate.cache_bytes(wanted) > estimate.usable:
                continue
            other = whole()
            if other.fixed + other.cache_bytes(wanted) <= other.usable:
                left = other.longest_context(context)
                shorter = "" if wanted == context else f" together with --max-model-len {left}"
                yield f"{words}{shorter} (its weights then take {_size(other.models[0].weights)})"
                yield "use a smaller model"
                return
    if not stored:
        yield "use a smaller model"
        return
    name, format, weights = stored[-1]
    yield f"use a smaller model (even in {_label(name, format)} its weights take {_size(weights)})"


def _label(name: str, format: str) -> str:
    return name if name == format else f"{name} ({format})"


def _sentence(remedies: Sequence[str]) -> str:
    *others, last = remedies
    text = f"{', '.join(others)}, or {last}" if others else last
    return f"{text[0].upper()}{text[1:]}."


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB else f"{nbytes / (1 << 20):.0f} MiB"
