"""What is estimated is what is taken: weights, buffers, KV cache; and formats and rooflines by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from random_models import random_checkpoint, small_config
from tokentrail.checkpoints import Checkpoint, RopeConfig, Tensor
from tokentrail.checkpoints.layout import tensor_shapes
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.estimate import estimate_memory, formats_of, weights_in
from tokentrail.engine.roofline import step_work
from tokentrail.models import load_model
from tokentrail.ops.backend import KvLayout, Limits
from tokentrail.ops.native import NativeBackend
from tokentrail.ops.native.machine import Machine

GIB = 1 << 30


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"hidden_size": 32, "intermediate_size": 32, "num_heads": 8, "num_kv_heads": 8, "head_dim": 64},
        {"hidden_size": 512, "intermediate_size": 64},
        {"hidden_size": 64, "intermediate_size": 1024, "vocab_size": 2000},
    ],
    ids=str,
)
@pytest.mark.parametrize("format", ["Q8_0", "BF16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_estimated_is_what_is_taken(shape: dict[str, int], format: str, threads: int) -> None:
    checkpoint = random_checkpoint(small_config(**shape), format=format)
    config = EngineConfig(max_num_batched_tokens=256, max_num_seqs=32)
    backend = NativeBackend(threads)
    estimate = estimate_memory(checkpoint, backend, config, free=8 * GIB)
    model = load_model(checkpoint, backend)
    assert estimate.weights == model.weight_bytes
    kv = replace(estimate.models[0].kv, blocks=64)
    executable = backend.compile(model.program, kv, estimate.limits, checkpoint.config.vocab_size)
    assert executable._kv.bytes == estimate.cache_bytes(64 * 16)
    one = np.zeros(1, np.int32)
    executable.forward(one, one, np.array([0, 1], np.int32), one[None], one)  # makes the threads' scratch
    sampler = threads * 48 * (checkpoint.config.vocab_size + 256)
    assert executable.nbytes <= estimate.buffers <= executable.nbytes + sampler


def test_the_process_takes_what_was_estimated(demo_path: Path) -> None:
    """Growth of a process's proportional set size (PSS) from before loading until all of the cache has been written."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("Linux tells a process's PSS")
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("memory_taken.py")), str(demo_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    estimated, taken = map(int, result.stdout.split())
    print(f"estimated {estimated:,}, taken {taken:,}: {taken / estimated - 1:+.2%}")
    assert abs(taken / estimated - 1) < 0.05


def shaped(format: str, **shape: int) -> Checkpoint:
    """A model of any size without its weights."""
    config = small_config(rope=RopeConfig(dim=shape["head_dim"]), **shape)
    nothing = np.zeros(0, np.uint8)
    tensors = {
        name: Tensor(name, size, "F32" if len(size) == 1 else format, nothing)
        for name, size in tensor_shapes(config)[0].items()
    }
    return replace(random_checkpoint(), config=config, tensors=tensors, path=Path("big.gguf"))


LLAMA_70B = {
    "num_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_heads": 64,
    "num_kv_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
}


def test_seventy_billion_parameters_in_half_precision_take_140_gigabytes() -> None:
    checkpoint, backend = shaped("Q4_0", **LLAMA_70B), NativeBackend(1)
    parameters = sum(int(np.prod(tensor.shape)) for tensor in checkpoint.tensors.values())
    assert round(parameters / 1e9, 2) == 70.55
    half = weights_in(checkpoint, backend, "F16")
    assert half is not None
    assert 140e9 < half < 142e9
    sizes = [nbytes for _, _, nbytes in formats_of(checkpoint, backend)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < half / 3.5
    assert estimate_memory(checkpoint, backend, EngineConfig(), free=0).weights == sizes[-1]


def test_formats_whose_blocks_do_not_fit_are_left_out() -> None:
    checkpoint = random_checkpoint(small_config(hidden_size=80, num_heads=5, num_kv_heads=5))
    assert weights_in(checkpoint, NativeBackend(1), "Q8_0") is None
    assert weights_in(checkpoint, NativeBackend(1), "BF16") is not None


def test_work_of_a_step_by_hand() -> None:
    config = small_config(sliding_window=20, windowed_layers=(True, False))
    checkpoint, backend = random_checkpoint(config, format="Q8_0"), NativeBackend(1)
    model = estimate_memory(checkpoint, backend, EngineConfig(), free=GIB).models[0]
    kv = KvLayout("bfloat16", 2, 1, 16, 2, 16)
    work = step_work(model.program, kv, sequences=3, tokens=1, context=99)
    matrices = {n: t for n, t in checkpoint.tensors.items() if len(t.shape) == 2}
    layers = sum(np.prod(t.shape) for n, t in matrices.items() if n != "embed")
    assert work.macs == {"int8": 3 * layers, "bf16": 3 * 2 * 64 * (20 + 100)}
    head = 2 * 2 * 16 * 2  # bytes of keys and values of a token in one layer
    packed = {n: backend.packed_bytes("Q8_0", *t.shape) for n, t in matrices.items()}
    rows = 3 * packed["embed"] / 64
    expected = sum(packed.values()) - packed["embed"] + rows + 3 * head * (20 + 100)
    assert work.nbytes == expected
    prefill = step_work(model.program, kv, sequences=1, tokens=4, context=0)
    assert prefill.macs["bf16"] == 2 * 2 * 64 * (1 + 2 + 3 + 4)
    head_macs = 64 * 64
    assert prefill.macs["int8"] == 4 * (layers - head_macs) + head_macs, "logits of the last row alone"


def test_the_least_time_is_that_of_the_lower_roof() -> None:
    machine = Machine(100.0, {"int8": 10.0, "bf16": 5.0})
    assert machine.least(1000.0, {"int8": 10.0}) == (10.0, "memory")
    assert machine.least(100.0, {"int8": 10.0, "bf16": 10.0}) == (3.0, "bf16")


def test_limits_are_those_of_the_configuration() -> None:
    config = EngineConfig(max_num_batched_tokens=100, max_num_seqs=80)
    estimate = estimate_memory(random_checkpoint(), NativeBackend(1), config, free=GIB)
    assert estimate.limits == Limits(100, 80, 80)
    assert estimate.usable == int(0.9 * GIB)
