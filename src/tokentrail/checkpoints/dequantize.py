"""Dequantization in NumPy: stored bytes → float32, one readable function a type.

This is what a stored type means, and the way the reference backend gets its weights; fast paths in C++ are
judged against it. A block is `block_size` consecutive elements of a row (ggml-common.h gives the layouts):

- Q4_0: f16 d, 16 bytes of nibbles q; element i < 16 is the low nibble of byte i, element i + 16 the high
  one; x = d · (q - 8).
- Q4_1: f16 d, f16 m, nibbles as above; x = d · q + m.
- Q8_0: f16 d, 32 signed bytes q; x = d · q.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


def dequantize(data: U8, format: str, shape: tuple[int, ...]) -> F32:
    """Bytes of a tensor of the type `format` → float32 array of `shape` (row-major), newly allocated.

    `data` is uint8, contiguous, exactly the tensor's bytes. Raises `ValueError` for a format that is not in
    `RUNNABLE_FORMATS` or bytes that do not fit the shape.
    """
    function = _DEQUANTIZE.get(format)
    if function is None:
        raise ValueError(f"no dequantization for {format}")
    values = function(np.ascontiguousarray(data).reshape(-1))
    if values.size != math.prod(shape):
        raise ValueError(f"{data.nbytes} bytes of {format} are {values.size} elements, not shape {shape}")
    return values.reshape(shape)


def _f32(data: U8) -> F32:
    return data.view("<f4").astype(np.float32)


def _f16(data: U8) -> F32:
    return data.view("<f2").astype(np.float32)


def _bf16(data: U8) -> F32:
    # bfloat16 is the upper half of a float32.
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _scales(column: U8) -> F32:
    """[blocks, 2] bytes of f16 → [blocks, 1] float32."""
    scales: F32 = np.ascontiguousarray(column).view("<f2").astype(np.float32)
    return scales


def _nibbles(packed: U8) -> F32:
    """[blocks, 16] bytes → [blocks, 32] values 0 … 15: the low nibbles, then the high ones."""
    return np.concatenate((packed & 15, packed >> 4), axis=1).astype(np.float32)


def _q4_0(data: U8) -> F32:
    blocks = data.reshape(-1, 18)
    values: F32 = _scales(blocks[:, :2]) * (_nibbles(blocks[:, 2:]) - np.float32(8))
    return values.reshape(-1)


def _q4_1(data: U8) -> F32:
    blocks = data.reshape(-1, 20)
    scale, minimum = _scales(blocks[:, :2]), _scales(blocks[:, 2:4])
    values: F32 = scale * _nibbles(blocks[:, 4:]) + minimum
    return values.reshape(-1)


def _q8_0(data: U8) -> F32:
    blocks = data.reshape(-1, 34)
    quants = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    values: F32 = _scales(blocks[:, :2]) * quants
    return values.reshape(-1)


_DEQUANTIZE: dict[str, Callable[[U8], F32]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}

RUNNABLE_FORMATS = frozenset(_DEQUANTIZE)
"""Stored types that can be run today."""
