"""Dequantization against the reference functions of the `gguf` package, bit for bit."""

from __future__ import annotations

import runpy
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrail.checkpoints import DEQUANTIZED_TYPES, Checkpoint, dequantize
from tokentrail.checkpoints.dequantize.codebooks import codebook
from tokentrail.checkpoints.dequantize.grouped import packed, unpacked
from tokentrail.checkpoints.formats import GROUP_BITS, block_format, grouped_format, stored_bytes

ROOT = Path(__file__).resolve().parents[2]
REFERENCED = sorted(DEQUANTIZED_TYPES - {"Q1_0", "Q2_0"})
"""These two have no reference function in the package."""
QUANTIZED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")
"""What the package can write."""


def random_bytes(name: str, blocks: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (blocks, block_format(name).nbytes), dtype=np.uint8)


@pytest.mark.parametrize("name", QUANTIZED)
def test_random_values_equal_reference(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    random = np.random.default_rng(sum(name.encode()))
    values = (random.standard_normal((24, 768)) * 10.0 ** random.integers(-4, 3, (24, 1))).astype(np.float32)
    stored = gguf.quantize(values, kind)
    expected = gguf.dequantize(stored, kind)
    ours = dequantize(stored.reshape(-1).view(np.uint8), name, values.shape)
    assert ours.dtype == np.float32
    assert ours.shape == values.shape
    assert np.array_equal(ours, expected)


@pytest.mark.parametrize("name", REFERENCED)
def test_any_bytes_equal_reference(name: str) -> None:
    """Every bit pattern of a block, infinite and NaN scales included, not only what quantizers write."""
    blocks = 1000
    stored = random_bytes(name, blocks)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(stored, gguf.GGMLQuantizationType[name]).reshape(-1)
        ours = dequantize(stored.reshape(-1), name, (blocks, block_format(name).values)).reshape(-1)
    number = ~np.isnan(expected)
    assert number.any()
    assert np.array_equal(number, ~np.isnan(ours))
    # Bits, so that -0 is not taken for 0.
    assert np.array_equal(ours[number].view(np.uint32), expected[number].view(np.uint32))


def test_long_tensors_are_taken_in_parts() -> None:
    """Longer than what is dequantized at a time, and no multiple of it."""
    blocks = 5000
    stored = random_bytes("Q8_0", blocks) & 0x7B  # finite scales
    expected = gguf.dequantize(stored, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(dequantize(stored.reshape(-1), "Q8_0", (blocks, 32)), expected)
    whole = random_bytes("Q4_K", 3000) & 0x7B
    expected = gguf.dequantize(whole, gguf.GGMLQuantizationType.Q4_K)
    assert np.array_equal(dequantize(whole.reshape(-1), "Q4_K", (3, 256_000)), expected.reshape(3, -1))


def test_one_bit_values() -> None:
    stored = np.zeros((2, 18), np.uint8)
    stored[:, :2].view("<f2")[:, 0] = (0.5, 2.0)
    stored[0, 2] = 0b101
    stored[1, 17] = 0x80
    expected = np.repeat(np.array([[-0.5], [-2.0]], np.float32), 128, axis=1)
    expected[0, [0, 2]] = 0.5
    expected[1, 127] = 2
    assert np.array_equal(dequantize(stored.reshape(-1), "Q1_0", (2, 128)), expected)


def test_two_bit_values() -> None:
    stored = np.zeros((2, 18), np.uint8)
    stored[:, :2].view("<f2")[:, 0] = (0.5, 2.0)
    stored[0, 2] = 0b11_10_01_00
    stored[1, 17] = 0b01_000000
    expected = np.repeat(np.array([[-0.5], [-2.0]], np.float32), 64, axis=1)
    expected[0, :4] = (-0.5, 0, 0.5, 1)
    expected[1, 63] = 0
    assert np.array_equal(dequantize(stored.reshape(-1), "Q2_0", (2, 64)), expected)


def test_codebooks_are_what_the_script_makes() -> None:
    """The arrays here and the header of the kernels are those of the reference, and so one another's."""
    script = runpy.run_path(str(ROOT / "scripts/make_codebooks.py"))
    tables = script["codebooks"]()
    for name, table in tables.items():
        assert np.array_equal(codebook(name), table)
    assert (ROOT / "csrc/codebooks.h").read_text() == script["header"](tables)


@given(st.sampled_from(GROUP_BITS), st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_grouped_values_keep_through_packing(bits: int, eights: int, rows: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2**bits, (rows, 8 * eights), dtype=np.uint8)
    stored = packed(values, bits)
    assert stored.shape == (rows, eights * bits)
    assert np.array_equal(unpacked(stored, bits), values)


@pytest.mark.parametrize("bits", GROUP_BITS)
@pytest.mark.parametrize("group", [8, 32, 128, 896])
def test_grouped_values_mean_scale_times_value_minus_zero(bits: int, group: int) -> None:
    """Decoded by hand, a bit at a time, against the definition in `formats.py`."""
    form = grouped_format(f"G{bits}_{group}")
    assert form is not None
    random = np.random.default_rng(bits * group)
    rows, groups = 3, 2
    scales = random.standard_normal((rows, groups)).astype(np.float16)
    zeros = random.integers(0, 256, (rows, groups), dtype=np.uint8)
    payload = random.integers(0, 256, (rows, groups, group * bits // 8), dtype=np.uint8)
    stored = np.concatenate(
        (scales[..., None].view(np.uint8).reshape(rows, groups, 2), zeros[..., None], payload), axis=-1
    )
    assert stored.nbytes == stored_bytes(form.name, (rows, groups * group))
    expected = np.empty((rows, groups, group))
    for row in range(rows):
        for at in range(groups):
            number = int.from_bytes(payload[row, at].tobytes(), "little")
            for i in range(group):
                value = number >> i * bits & (1 << bits) - 1
                expected[row, at, i] = float(scales[row, at]) * (value - int(zeros[row, at]))
    ours = dequantize(stored.reshape(-1), form.name, (rows, groups * group))
    assert np.array_equal(ours, expected.reshape(rows, -1).astype(np.float32))


@pytest.mark.parametrize("name", ["G4_12", "G5_32", "G4_0", "G4", "g4_32", "G4_032", "G4_32x", "Q9_9"])
def test_names_that_are_no_format(name: str) -> None:
    assert grouped_format(name) is None
    with pytest.raises(ValueError, match="no stored format"):
        block_format(name)


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
    with pytest.raises(ValueError, match="no dequantization for Q8_K"):
        dequantize(np.zeros(292, np.uint8), "Q8_K", (256,))
    with pytest.raises(ValueError, match="not shape"):
        dequantize(np.zeros(34, np.uint8), "Q8_0", (64,))
    with pytest.raises(ValueError, match="not shape"):
        dequantize(np.zeros(35, np.uint8), "Q8_0", (32,))
    with pytest.raises(ValueError, match="not whole blocks"):
        stored_bytes("Q4_K", (2, 128))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", sorted(DEQUANTIZED_TYPES))
def test_any_bytes_are_dequantized_without_a_word(kind: str) -> None:
    """Damaged scales give infinities and what is no number; warnings of NumPy would only puzzle."""
    values, nbytes = block_format(kind)
    random = np.random.default_rng(0)
    for data in (
        np.full(nbytes * 2000, 0xFF, np.uint8),
        random.integers(0, 256, nbytes * 2000, dtype=np.uint8),
    ):
        assert dequantize(data, kind, (2000, values)).shape == (2000, values)
