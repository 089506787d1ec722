"""What fits: the KV cache and the context that a given amount of free memory allows, and the words when it does not."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_models import random_checkpoint, small_config
from tokentrail.checkpoints import Checkpoint, RopeConfig, Tensor, quantize_checkpoint
from tokentrail.checkpoints.layout import tensor_shapes
from tokentrail.engine.capacity import Capacity, plan_capacity
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.estimate import estimate_memory
from tokentrail.ops.native import NativeBackend
from tokentrail.protocol import CapacityError, InvalidRequest

MIB, GIB = 1 << 20, 1 << 30
BACKEND = NativeBackend(1)


@cache
def sized_checkpoint(
    layers: int = 8, hidden: int = 4096, context: int = 8192, format: str = "Q4_0"
) -> Checkpoint:
    """A model of a real size without its weights: planning looks at shapes alone. (Wide rather than deep, since it
    records every layer.)"""
    config = small_config(
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=hidden,
        num_heads=hidden // 64,
        num_kv_heads=hidden // 128,
        head_dim=64,
        vocab_size=32000,
        max_position=context,
        rope=RopeConfig(dim=64),
    )
    nothing = np.zeros(0, np.uint8)
    tensors = {
        name: Tensor(name, shape, "F32" if len(shape) == 1 else format, nothing)
        for name, shape in tensor_shapes(config)[0].items()
    }
    return replace(random_checkpoint(), config=config, tensors=tensors, path=Path("big.gguf"))


def plan(free: int, checkpoint: Checkpoint | None = None, **config: object) -> Capacity:
    return plan_capacity(checkpoint or sized_checkpoint(), BACKEND, EngineConfig(**config), free=free)


WEIGHTS = sum(
    BACKEND.packed_bytes("Q4_0", *t.shape) if len(t.shape) == 2 else 4 * t.shape[0]
    for t in sized_checkpoint().tensors.values()
)
BYTES_PER_TOKEN = 8 * 2 * 32 * 64 * 2


def test_a_cache_takes_a_quarter_of_much_memory() -> None:
    got = plan(64 * GIB)
    assert got.max_model_len == 8192
    assert got.kv.bytes_per_token == BYTES_PER_TOKEN
    assert abs(got.kv.nbytes - 16 * GIB) < got.kv.bytes_per_token * 16


def test_a_cache_never_exceeds_what_the_sequences_can_fill() -> None:
    got = plan(64 * GIB, max_num_seqs=2, max_model_len=1024)
    assert got.kv.blocks == 2 * 1024 // 16


def test_one_sequence_gets_its_context_even_beyond_the_quarter() -> None:
    got = plan(3 * GIB // 2)
    assert got.max_model_len == 8192
    assert got.kv.blocks == 8192 // 16


def test_the_context_shrinks_to_what_fits_when_nobody_asked_for_it() -> None:
    got = plan(WEIGHTS + 250 * MIB, max_num_batched_tokens=64, memory_utilization=1.0)
    assert 512 <= got.max_model_len < 8192
    assert got.max_model_len == got.kv.blocks * 16


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32"])
@pytest.mark.parametrize("block_size", [16, 256])
def test_explicit_cache_memory_is_taken_exactly(dtype: str, block_size: int) -> None:
    memory = 777 * MIB
    got = plan(16 * GIB, kv_cache_memory=memory, kv_cache_dtype=dtype, block_size=block_size)
    block = got.kv.bytes_per_token * block_size
    assert got.kv.dtype == dtype
    assert memory - block < got.kv.nbytes <= memory
    per_head = {"bfloat16": 64 * 2, "int8": 64 + 4, "float32": 64 * 4}[dtype]
    assert got.kv.bytes_per_token == 8 * 2 * 32 * per_head


def test_more_explicit_memory_than_can_be_used_is_not_asked_for() -> None:
    got = plan(4 * GIB, kv_cache_memory=100 * GIB, max_num_seqs=1, max_model_len=1024)
    assert got.kv.blocks == 1024 // 16


def test_context_not_asked_for_shrinks_to_explicit_memory() -> None:
    got = plan(16 * GIB, kv_cache_memory=1000 * BYTES_PER_TOKEN)
    assert got.max_model_len == 1000 // 16 * 16


def sizes(message: str) -> list[float]:
    """All amounts in a message, in MiB."""
    found = re.findall(r"([\d.]+) (MiB|GiB)", message)
    return [float(number) * (1024 if unit == "GiB" else 1) for number, unit in found]


def test_too_little_memory_says_how_much_is_needed_and_what_helps() -> None:
    with pytest.raises(CapacityError) as caught:
        plan(850 * MIB, max_model_len=8192)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("big.gguf: a context of 8192 tokens needs ")
    needed, weights, buffers, cache, usable, free = sizes(message)[:6]
    assert abs(needed - weights - buffers - cache) < 0.02 * needed
    assert abs(cache - 8192 * BYTES_PER_TOKEN / MIB) <= 1
    assert abs(weights - WEIGHTS / MIB) <= 1
    assert free == 850
    assert abs(usable - 0.9 * 850) <= 1
    assert needed > usable
    assert "--max-model-len" in message


REMEDIES = {
    "--kv-cache-dtype int8": {"kv_cache_dtype": "int8"},
    "--max-num-seqs": {"max_num_seqs": 1},
    "--max-num-batched-tokens 128": {"max_num_batched_tokens": 128},
    "--gpu-memory-utilization": {"memory_utilization": 1.0},
}


@settings(max_examples=60, deadline=None)
@given(
    free=st.integers(300 * MIB, 1500 * MIB),
    seqs=st.integers(1, 3000),
    tokens=st.integers(16, 4096),
    share=st.floats(0.5, 1.0),
)
def test_what_is_advised_helps(*, free: int, seqs: int, tokens: int, share: float) -> None:
    config = {
        "max_model_len": 8192,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "memory_utilization": share,
    }
    try:
        plan(free, **config)
    except CapacityError as error:
        message = str(error)
        for words, fields in REMEDIES.items():
            if words in message:
                assert plan(free, **{**config, **fields}).max_model_len == 8192, words


@pytest.mark.parametrize("free", [MIB * free for free in range(300, 5000, 300)])
@pytest.mark.parametrize("format", ["F16", "Q8_0"])
def test_smaller_formats_that_are_advised_fit(free: int, format: str) -> None:
    full = sized_checkpoint(format=format)
    try:
        plan(free, full, max_model_len=8192)
    except CapacityError as error:
        message = str(error)
    else:
        return
    shorter = re.search(r" together with --max-model-len (\d+)", message)
    length = 8192 if shorter is None else int(shorter[1])
    assert length >= 4096
    if found := re.search(r"with --quantization (int.).* \(its weights then take (\S+ .iB)\)", message):
        assert format == "F16"
        smaller = quantize_checkpoint(full, found[1])[0]
    elif found := re.search(r"the model in (?:int. \()?(\w+).* \(its weights then take (\S+ .iB)\)", message):
        smaller = sized_checkpoint(format=found[1])
    else:
        assert "even in int4 (Q4_0) its weights take" in message
        with pytest.raises(CapacityError):
            plan(free, sized_checkpoint(format="Q4_0"), max_model_len=4096)
        return
    assert plan(free, smaller, max_model_len=length).max_model_len == length
    packed = estimate_memory(smaller, BACKEND, EngineConfig(), free=free).weights
    assert sizes(found[2])[0] == pytest.approx(packed / MIB, rel=0.01)


def test_the_advised_context_fits() -> None:
    with pytest.raises(CapacityError) as caught:
        plan(WEIGHTS + 600 * MIB, max_model_len=8192)
    advised = int(re.findall(r"--max-model-len (\d+)", str(caught.value))[0])
    assert advised > 0
    assert plan(WEIGHTS + 600 * MIB, max_model_len=advised).max_model_len == advised


def test_no_context_is_advised_when_none_fits() -> None:
    with pytest.raises(CapacityError) as caught:
        plan(100 * MIB)
    assert "--max-model-len" not in str(caught.value)
    assert str(caught.value).endswith("free memory. Use a smaller model.")


def test_too_little_explicit_memory() -> None:
    with pytest.raises(CapacityError) as caught:
        plan(16 * GIB, kv_cache_memory=10 * MIB)
    needed, given = sizes(str(caught.value))
    assert given == 10
    assert abs(needed - 8192 * BYTES_PER_TOKEN / MIB) <= 1
    assert "give more with --kv-cache-memory" in str(caught.value)


def test_more_explicit_memory_than_there_is() -> None:
    with pytest.raises(
        CapacityError, match=r"--kv-cache-memory 8\.00 GiB does not fit beside .*: 4\.00 GiB of memory"
    ):
        plan(4 * GIB, kv_cache_memory=8 * GIB)
    with pytest.raises(CapacityError, match=r"memory is free\. Ask for less, or use a smaller model\."):
        plan(4 * GIB, kv_cache_memory=8 * GIB)
    with pytest.raises(CapacityError, match=r"memory is free\. Use a smaller model\."):
        plan(100 * MIB, kv_cache_memory=8 * GIB)


@pytest.mark.parametrize("length", [0, -1, 8193, 1 << 40])
def test_context_beyond_the_models(length: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"--max-model-len must be from 1 to 8192 .*, not {length}\."):
        plan(16 * GIB, max_model_len=length)


@settings(max_examples=300, deadline=None)
@given(
    free=st.integers(0, 64 * GIB),
    kv=st.none() | st.integers(1, 64 * GIB),
    length=st.none() | st.integers(1, 8192),
    block_size=st.sampled_from([16, 32, 64, 128, 256]),
    seqs=st.integers(1, 300),
    tokens=st.integers(1, 9000),
    share=st.floats(0.05, 1.0),
)
def test_a_plan_fits_or_says_why_not(
    *, free: int, kv: int | None, length: int | None, block_size: int, seqs: int, tokens: int, share: float
) -> None:
    config = {
        "kv_cache_memory": kv,
        "max_model_len": length,
        "block_size": block_size,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "memory_utilization": share,
    }
    try:
        got = plan(free, **config)
    except CapacityError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert "\n" not in message
        assert message.startswith("big.gguf: ")
        return
    assert got.kv.blocks >= 1
    assert got.kv.blocks * block_size >= got.max_model_len, "one sequence of full length fits"
    assert got.kv.nbytes + WEIGHTS <= free
    assert got.max_model_len == length if length else got.max_model_len <= 8192
    assert got.max_logit_rows >= min(seqs, tokens), "each sequence of a decode step gets its logits"
    if kv is not None:
        assert got.kv.nbytes <= kv
