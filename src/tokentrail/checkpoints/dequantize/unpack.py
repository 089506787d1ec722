"""What the types' functions share: taking bits, halves and tables out of blocks of bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]
F32 = npt.NDArray[np.float32]


def halves(columns: U8) -> F32:
    """[blocks, 2m] bytes of float16 → [blocks, m] float32."""
    values: F32 = np.ascontiguousarray(columns).view("<f2").astype(np.float32)
    return values


def words(columns: U8, dtype: str) -> npt.NDArray[np.uint32]:
    """[blocks, m] bytes → little-endian unsigned integers of `dtype`, widened to 32 bits."""
    values: npt.NDArray[np.uint32] = np.ascontiguousarray(columns).view(dtype).astype(np.uint32)
    return values


def signed(columns: U8) -> F32:
    """[blocks, m] bytes as signed integers, in float32."""
    return np.ascontiguousarray(columns).view(np.int8).astype(np.float32)


def planes(packed: U8, run: int, bits: int) -> U8:
    """[blocks, m] bytes → [blocks, m · 8 / bits] unsigned values of `bits` bits (1, 2 or 4).

    Values lie in planes: of each run of `run` bytes come first the lowest bits of all its bytes, then the next bits of
    all, and so on. A run of 1 is plain order: all values of a byte, the lowest bits first.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    values = (packed.reshape(len(packed), -1, 1, run) >> shifts) & np.uint8(2**bits - 1)
    result: U8 = values.reshape(len(packed), -1)
    return result


def scaled(scales: F32, values: npt.NDArray[np.generic]) -> F32:
    """Values [blocks, m] times their scales [blocks, s]: each scale is that of the next m / s values."""
    runs = values.astype(np.float32).reshape(*scales.shape, -1)
    return (scales[..., None] * runs).reshape(len(values), -1)
