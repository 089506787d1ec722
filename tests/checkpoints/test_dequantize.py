"""Dequantization against the reference functions of the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tokentrail.checkpoints import RUNNABLE_FORMATS, Checkpoint, dequantize


@pytest.mark.parametrize("name", sorted(RUNNABLE_FORMATS))
def test_random_values_equal_reference(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    random = np.random.default_rng(sum(name.encode()))
    values = (random.standard_normal((24, 96)) * 10.0 ** random.integers(-4, 3, (24, 1))).astype(np.float32)
    stored = gguf.quantize(values, kind)
    expected = gguf.dequantize(stored, kind)
    ours = dequantize(stored.reshape(-1).view(np.uint8), name, values.shape)
    assert ours.dtype == np.float32
    assert ours.shape == values.shape
    assert np.array_equal(ours, expected)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_any_bytes_equal_reference(name: str) -> None:
    """Every bit pattern of a block, infinite and NaN scales included, not only what quantizers write."""
    kind = gguf.GGMLQuantizationType[name]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    stored = np.random.default_rng(1).integers(0, 256, (64, 8 * block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(stored, kind)
        ours = dequantize(stored.reshape(-1), name, (64, 8 * block_size))
    assert np.array_equal(ours, expected, equal_nan=True)


def test_demo_model_equals_reference(demo_checkpoint: Checkpoint, demo_reference: gguf.GGUFReader) -> None:
    reference = {tensor.name: tensor for tensor in demo_reference.tensors}
    for ours, theirs in (("layers.29.down", "blk.29.ffn_down.weight"), ("embed", "token_embd.weight")):
        tensor, stored = demo_checkpoint.tensors[ours], reference[theirs]
        values = dequantize(tensor.data, tensor.format, tensor.shape)
        assert np.array_equal(values, gguf.dequantize(stored.data, stored.tensor_type))


def test_result_is_a_copy() -> None:
    stored = np.arange(8, dtype=np.float32).view(np.uint8)
    values = dequantize(stored, "F32", (8,))
    values[0] = 5
    assert stored.view(np.float32)[0] == 0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="no dequantization for Q6_K"):
        dequantize(np.zeros(210, np.uint8), "Q6_K", (256,))
    with pytest.raises(ValueError, match="not shape"):
        dequantize(np.zeros(34, np.uint8), "Q8_0", (64,))
