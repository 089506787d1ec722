"""Quantization on loading by the kernels: that of NumPy, but for sums in another order."""

from __future__ import annotations

import numpy as np
import pytest

from tokentrail.checkpoints import dequantize
from tokentrail.checkpoints.quantize import quantize_in_numpy
from tokentrail.ops.native import WeightQuantizer, available_isas

BLOCK = {"Q8_0": 34, "Q4_0": 18}


def stored(x: np.ndarray, format: str) -> np.ndarray:
    if format == "BF16":
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
    with np.errstate(over="ignore"):
        return x.astype(np.float16 if format == "F16" else np.float32).view(np.uint8).reshape(-1)


def groups(seed: int, count: int = 5000) -> np.ndarray:
    """Of all magnitudes; some zero, of one value, with opposite values equally far from zero, or with an outlier."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 32)).astype(np.float32)
    x *= 10.0 ** random.uniform(-4, 3, (count, 1)).astype(np.float32)
    x[::50] = 0
    x[1::50, 1:] = 0
    x[2::50, 9], x[2::50, 20] = -7000, 7000
    x[3::50, 30], x[3::50, 31] = 7000, -7000
    x[4::50, 13] *= 1000
    x[5::50] *= np.float32(1e-6)
    return np.clip(x, -60000, 60000)


@pytest.mark.parametrize("target", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("isa", available_isas())
def test_as_in_numpy(isa: str, format: str, target: str) -> None:
    data = stored(groups(1), format)
    blocks, errors, squares = WeightQuantizer(2, isa)(data, format, target)
    expected, expected_errors, expected_squares = quantize_in_numpy(data, format, target)
    assert squares == pytest.approx(expected_squares, rel=1e-5)
    assert errors == pytest.approx(expected_errors, rel=1e-4)
    ours, theirs = (b.reshape(-1, BLOCK[target]) for b in (blocks, expected))
    differ = (ours != theirs).any(axis=1)
    # A sum in another order moves a scale over a border between two half-precision numbers: by one of them.
    assert differ.mean() < 2e-3
    scales = [b[differ, :2].copy().view("<i2")[:, 0].astype(int) for b in (ours, theirs)]
    assert np.abs(scales[0] - scales[1]).max(initial=0) <= 1
    shape = (len(ours), 32)
    values, reference = (dequantize(b, target, shape) for b in (blocks, expected))
    step = np.abs(reference).max(axis=1, keepdims=True) / (127 if target == "Q8_0" else 7)
    assert (np.abs(values - reference) <= 1.2 * step + 1e-7).all()


@pytest.mark.parametrize("target", ["Q8_0", "Q4_0"])
def test_threads_change_no_byte(target: str) -> None:
    data = stored(groups(2, 20_000), "BF16")
    results = [WeightQuantizer(threads)(data, "BF16", target) for threads in (1, 3)]
    assert np.array_equal(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]


@pytest.mark.parametrize("isa", available_isas())
def test_what_is_no_number_shows_in_the_squares(isa: str) -> None:
    for value in (np.nan, np.inf, -np.inf):
        x = groups(3, 100)
        x[40, 17] = value
        for target in BLOCK:
            assert not np.isfinite(WeightQuantizer(1, isa)(stored(x, "F32"), "F32", target)[2])


def test_unaligned_data() -> None:
    data = stored(groups(4, 300), "F32")
    shifted = np.empty(len(data) + 1, np.uint8)
    shifted[1:] = data
    quantize = WeightQuantizer(1)
    for target in BLOCK:
        assert np.array_equal(quantize(data, "F32", target)[0], quantize(shifted[1:], "F32", target)[0])


def test_other_formats_are_refused() -> None:
    with pytest.raises(KeyError):
        WeightQuantizer(1)(np.zeros(34, np.uint8), "Q8_0", "Q4_0")
    with pytest.raises(ValueError, match="different groups"):
        WeightQuantizer(1)(np.zeros(130, np.uint8), "F32", "Q4_0")
