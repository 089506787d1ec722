"""Checkpoints that gptqmodel wrote, against the logits of its own dequantized weights.

`scripts/make_quantized_golden.py` made them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tokentrail.checkpoints import dequantize, open_checkpoint
from tokentrail.models import load_model
from tokentrail.ops.backend import KvLayout, Limits
from tokentrail.ops.native import NativeBackend
from tokentrail.ops.reference import ReferenceBackend

GOLDEN = Path(__file__).resolve().parents[1] / "golden/gptqmodel.npz"
with np.load(GOLDEN) as _arrays:
    ARRAYS = dict(_arrays)
CASES = sorted({key.partition("/")[0] for key in ARRAYS if "/" in key})


def write(case: str, folder: Path) -> Path:
    config = json.loads(ARRAYS[f"{case}/config"].tobytes())
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(ARRAYS[f"{case}/tensors"].tobytes())
    return folder


def logits(folder: Path, backend: NativeBackend | ReferenceBackend, activation_dtype: str) -> np.ndarray:
    """Of the golden prompt, with a cache in float32."""
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    model = load_model(checkpoint, backend, activation_dtype=activation_dtype)
    prompt = ARRAYS["prompt"]
    kv = KvLayout("float32", config.num_layers, 1, 16, config.num_kv_heads, config.head_dim)
    count = len(prompt)
    executable = backend.compile(model.program, kv, Limits(count, 1, count), config.vocab_size)

    def row(values: object) -> np.ndarray:
        return np.array(values, np.int32)

    positions = np.arange(count, dtype=np.int32)
    return executable.forward(prompt, positions, row([0, count]), row([[0]]), positions).copy()


def relative(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def test_all_kinds_are_there() -> None:
    assert len(CASES) == 10
    assert {case.partition("-")[0] for case in CASES} == {"awq", "gptq", "gptq_v2"}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_gptqmodels_own_weights(case: str, tmp_path: Path) -> None:
    """With weights as they are stored and activations in float32; then with int8 activations, to their error."""
    folder = write(case, tmp_path)
    expected = ARRAYS[f"{case}/logits"]
    assert relative(logits(folder, NativeBackend(1), "float32"), expected) < 1e-5
    assert relative(logits(folder, ReferenceBackend(dequantize), "float32"), expected) < 1e-5
    assert relative(logits(folder, NativeBackend(1), "auto"), expected) < 0.03


def test_scattered_groups_are_gathered_once_for_equal_orders(tmp_path: Path) -> None:
    """q, k and v read the same input in one order, gate and up in another: two gathers, not five."""
    checkpoint = open_checkpoint(write("gptq-4bit-32-asym-act", tmp_path))
    orders = {n: t.column_order for n, t in checkpoint.tensors.items() if t.column_order is not None}
    assert {"layers.0.q", "layers.0.k", "layers.0.v", "layers.0.down"} <= orders.keys()
    assert np.array_equal(orders["layers.0.q"], orders["layers.0.k"])
    model = load_model(checkpoint, ReferenceBackend(dequantize))
    kernels = [call.kernel for call in model.program.calls]
    distinct = {tuple(orders[f"layers.0.{name}"]) for name in ("q", "k", "v")}
    distinct_mlp = {tuple(orders[f"layers.0.{name}"]) for name in ("gate", "up")}
    assert kernels.count("gather_columns") == len(distinct) + len(distinct_mlp) + 2
