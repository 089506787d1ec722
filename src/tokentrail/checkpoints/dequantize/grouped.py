"""Grouped integers, `G{bits}_{group}` (`checkpoints/formats.py` says what they are)."""

from __future__ import annotations

import numpy as np

from tokentrail.checkpoints.dequantize.unpack import F32, U8, halves, planes
from tokentrail.checkpoints.formats import GROUP_HEADER


def grouped(blocks: U8, bits: int) -> F32:
    """Blocks [n, 3 + group · bits / 8] → [n, group]: scale · (value - zero)."""
    scale, zero = halves(blocks[:, :2]), blocks[:, 2:3].astype(np.float32)
    values: F32 = scale * (unpacked(blocks[:, GROUP_HEADER:], bits).astype(np.float32) - zero)
    return values


def unpacked(packed: U8, bits: int) -> U8:
    """[n, m] bytes → [n, m · 8 / bits] values of 2, 3, 4 or 8 bits, the first in the lowest bits."""
    if bits == 8:
        return packed
    if bits == 3:  # values cross bytes
        of_values = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(packed), -1, 3)
        values: U8 = (of_values << np.arange(3, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)
        return values
    return planes(packed, 1, bits)


def packed(values: U8, bits: int) -> U8:
    """The other way: [n, m] values below 2^bits, m a multiple of 8 → [n, m · bits / 8] bytes."""
    if bits == 8:
        return values
    if bits == 3:
        of_values = values[..., None] >> np.arange(3, dtype=np.uint8) & 1
        return np.packbits(of_values.reshape(len(values), -1), axis=1, bitorder="little")
    per_byte = 8 // bits
    result: U8 = values[:, ::per_byte].copy()
    for i in range(1, per_byte):
        result |= values[:, i::per_byte] << np.uint8(i * bits)
    return result
