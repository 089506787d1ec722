"""K-quants: super-blocks of 256 values whose 8 or 16 groups have small integer scales under a float16 one.

Layouts: ggml-common.h of ggml. `d` scales the groups' scales, `dmin` the groups' minima; q are the stored values.
"""

from __future__ import annotations

import numpy as np

from tokentrail.checkpoints.dequantize.unpack import F32, U8, halves, planes, scaled, signed


def q2_k(blocks: U8) -> F32:
    """16 bytes (scale, minimum: 4 bits each), 64 of 2-bit values, d, dmin; groups of 16: x = d·s · q - dmin·m."""
    scales = halves(blocks[:, 80:82]) * (blocks[:, :16] & 15).astype(np.float32)
    minima = halves(blocks[:, 82:84]) * (blocks[:, :16] >> 4).astype(np.float32)
    return _minus(scaled(scales, planes(blocks[:, 16:80], 32, 2)), minima)


def q3_k(blocks: U8) -> F32:
    """32 bytes of third bits, 64 of 2-bit values, 12 of 6-bit scales, d; groups of 16: x = d·(s - 32) · (q - 4)."""
    scale_bits = planes(blocks[:, 96:104], 8, 4) | planes(blocks[:, 104:108], 4, 2) << 4
    scales = halves(blocks[:, 108:]) * (scale_bits.astype(np.int8) - 32).astype(np.float32)
    q = planes(blocks[:, 32:96], 32, 2) | planes(blocks[:, :32], 32, 1) << 2
    return scaled(scales, q.astype(np.int8) - 4)


def q4_k(blocks: U8) -> F32:
    """d, dmin, 12 bytes of 6-bit scales and minima, 128 of nibbles; groups of 32: x = d·s · q - dmin·m."""
    scales, minima = scales_and_minima(blocks)
    return _minus(scaled(scales, planes(blocks[:, 16:], 32, 4)), minima)


def q5_k(blocks: U8) -> F32:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles."""
    scales, minima = scales_and_minima(blocks)
    q = planes(blocks[:, 48:], 32, 4) | planes(blocks[:, 16:48], 32, 1) << 4
    return _minus(scaled(scales, q), minima)


def q6_k(blocks: U8) -> F32:
    """128 bytes of nibbles, 64 of the upper 2 bits, 16 signed scales, d; groups of 16: x = d·s · (q - 32)."""
    q = planes(blocks[:, :128], 64, 4) | planes(blocks[:, 128:192], 32, 2) << 4
    return scaled(halves(blocks[:, 208:]) * signed(blocks[:, 192:208]), q.astype(np.int8) - 32)


def scales_and_minima(blocks: U8) -> tuple[F32, F32]:
    """Of Q4_K and Q5_K: [blocks, 8] scales and minima, times d and dmin.

    The first four of each are the low 6 bits of bytes 0 … 3 and 4 … 7; the last four have their low 4 bits in the
    nibbles of bytes 8 … 11, and their upper 2 where those bytes have bits left.
    """
    first, second, nibbles = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((first & 63, nibbles & 15 | first >> 6 << 4), axis=1)
    minima = np.concatenate((second & 63, nibbles >> 4 | second >> 6 << 4), axis=1)
    return (
        halves(blocks[:, :2]) * scales.astype(np.float32),
        halves(blocks[:, 2:4]) * minima.astype(np.float32),
    )


def _minus(values: F32, minima: F32) -> F32:
    """Values [blocks, 256] minus the minima [blocks, groups] of their groups."""
    runs: F32 = values.reshape(*minima.shape, -1) - minima[..., None]
    return runs.reshape(len(values), -1)
