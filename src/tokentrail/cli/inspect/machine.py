"""What the model takes on this machine with the engine's flags, what would fit, and how fast it could be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokentrail.checkpoints import Checkpoint
    from tokentrail.engine import EngineConfig
    from tokentrail.engine.estimate import Estimate
    from tokentrail.ops.native import Machine, NativeBackend

BATCHES = (1, 8, 32)
CONTEXT = 1024
"""Tokens in the cache at which decoding is told (fewer where the model's context is shorter)."""
PROMPT = 512
_PEAK_SECONDS = 0.1
"""Spent on each kind of product: the quick version of `bench roofline`."""


def machine_facts(
    checkpoint: Checkpoint, config: EngineConfig, *, measure: bool, free: int | None = None
) -> dict[str, Any]:
    """As `--json` prints it, sizes in bytes. `free` defaults to what the machine has."""
    from tokentrail.engine.capacity import plan_capacity
    from tokentrail.engine.estimate import estimate_memory, formats_of, quantized_weights
    from tokentrail.engine.model_runner import open_adapters, open_backend, open_draft
    from tokentrail.protocol import CapacityError

    draft, adapters = open_draft(config, checkpoint), open_adapters(config, checkpoint)
    backend = open_backend(config)
    estimate = estimate_memory(checkpoint, backend, config, draft=draft, adapters=adapters, free=free)
    longest = estimate.longest_context(checkpoint.config.max_position)
    model = estimate.models[0]
    try:
        plan = plan_capacity(checkpoint, backend, config, draft=draft, adapters=adapters, free=estimate.free)
    except CapacityError as error:
        planned: dict[str, Any] = {"error": str(error)}
    else:
        planned = {
            "max_model_len": plan.max_model_len,
            "kv_cache_tokens": plan.kv.blocks * plan.kv.block_size,
            "kv_cache_bytes": plan.kv.blocks * estimate.block_bytes,
            "total_bytes": estimate.fixed + plan.kv.blocks * estimate.block_bytes,
        }
    return {
        "memory": {
            "weights": model.weights,
            "buffers": model.buffers,
            "draft": estimate.fixed - model.weights - model.buffers,
            "kv_cache_dtype": model.kv.dtype,
            "kv_bytes_per_token": estimate.block_bytes // estimate.block_size,
            "weights_by_format": {
                name: {"format": format, "bytes": nbytes}
                for name, format, nbytes in formats_of(checkpoint, backend)
            },
            "weights_quantized_on_loading": dict(quantized_weights(checkpoint, backend, config)),
        },
        "machine": {
            "threads": backend.threads,
            "isa": backend.isa,
            "free_bytes": estimate.free,
            "usable_bytes": estimate.usable,
            "longest_context": longest,
            "most_sequences": {str(n): estimate.most_sequences(n) for n in _lengths(longest)},
            "as_served": planned,
            "at_best": _speed(checkpoint, estimate, probe(backend)) if measure else None,
        },
    }


def _lengths(longest: int) -> list[int]:
    """Context lengths at which a batch is told: the longest, and two that are common."""
    return [longest, *(n for n in (8192, 1024) if n < longest)] if longest else []


def probe(backend: NativeBackend) -> Machine:
    """Measure the machine, with the backend's threads and instruction set."""
    from tokentrail.ops.native import Machine, MachineProbe

    measured = MachineProbe(backend.threads, isa=backend.isa)
    return Machine(measured.bandwidth(), measured.macs(_PEAK_SECONDS))


def _speed(checkpoint: Checkpoint, estimate: Estimate, machine: Machine) -> dict[str, Any]:
    """Tokens a second that the machine's rates allow, without what else a step takes: an upper bound."""
    from tokentrail.engine.roofline import step_work

    model = estimate.models[0]
    context = min(CONTEXT, checkpoint.config.max_position - 1)
    prompt = min(PROMPT, checkpoint.config.max_position)
    decode = {}
    for sequences in BATCHES:
        work = step_work(model.program, model.kv, sequences=sequences, tokens=1, context=context)
        seconds, bound = machine.least(work.nbytes, work.macs)
        decode[str(sequences)] = {"tokens_per_second": sequences / seconds, "bound_by": bound}
    work = step_work(model.program, model.kv, sequences=1, tokens=prompt, context=0)
    seconds, bound = machine.least(work.nbytes, work.macs)
    return {
        "memory_bytes_per_second": machine.bandwidth,
        "macs_per_second": machine.macs,
        "context": context,
        "decode": decode,
        "prompt": {"tokens": prompt, "tokens_per_second": prompt / seconds, "bound_by": bound},
    }
