"""What `bench throughput` and `bench latency` share: an engine in this process, requests of random tokens."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokentrail.cli.options import EngineOptions
    from tokentrail.cli.units import Lengths
    from tokentrail.engine import EngineConfig, LocalEngine
    from tokentrail.protocol import EngineInfo, GenerateRequest


def open_engine(options: EngineOptions) -> tuple[LocalEngine, EngineConfig]:
    from tokentrail.engine import LocalEngine

    config = options.engine_config()
    return LocalEngine(config), config


def random_requests(
    info: EngineInfo,
    count: int,
    inputs: Lengths,
    outputs: Lengths,
    rng: random.Random,
    *,
    name: str = "bench",
) -> list[GenerateRequest]:
    """Requests of random prompts that are answered greedily to their full length.

    Raises `TokentrailError` when the longest would not fit the context.
    """
    from tokentrail.cli.bench.report import random_token_ids
    from tokentrail.protocol import ContextLengthExceeded, GenerateRequest, SamplingParams

    if inputs.high + outputs.high > info.max_model_len:
        raise ContextLengthExceeded(
            f"{inputs.high} tokens in and {outputs.high} out do not fit the context of {info.max_model_len}; "
            "ask for less, or raise --max-model-len."
        )
    requests = []
    for index in range(count):
        id = f"{name}-{index}"
        requests.append(
            GenerateRequest(
                id=id,
                group=id,
                prompt=random_token_ids(rng.randint(inputs.low, inputs.high), info.vocab_size, rng),
                sampling=SamplingParams(
                    temperature=0.0,
                    max_tokens=rng.randint(outputs.low, outputs.high),
                    ignore_eos=True,
                    seed=index,
                ),
                arrival=time.time(),
            )
        )
    return requests


def engine_facts(info: EngineInfo) -> dict[str, Any]:
    """What a result's JSON says about the engine."""
    return {
        "architecture": info.architecture,
        "parameters": info.num_parameters,
        "isa": info.isa,
        "threads": info.threads,
        "max_model_len": info.max_model_len,
        "max_num_seqs": info.max_num_seqs,
        "max_num_batched_tokens": info.max_num_batched_tokens,
        "kv_cache_tokens": info.num_blocks * info.block_size,
        "fingerprint": info.fingerprint,
        "load_seconds": info.load_seconds,
        "file_bytes": info.file_bytes,
        "weight_bytes": info.weight_bytes,
    }


def engine_line(info: EngineInfo) -> str:
    return (
        f"{info.architecture}, {info.num_parameters / 1e6:.0f} M parameters, {info.threads} threads, "
        f"{info.isa}; loaded {info.loaded}"
    )
