"""Types whose values are looked up: runs of 8 (or 4) values at a time in a codebook, or one by one in a curve.

The codebooks are ggml's (ggml-common.h), kept beside this file in `codebooks.npz`; `scripts/make_codebooks.py` makes
it, and the same tables for the kernels. Signs are kept apart from magnitudes: a set bit is a minus.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.dequantize.unpack import F32, I8, U8, halves, planes, scaled, words

FOUR_BIT_CURVE = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""What the nibbles of IQ4_NL and IQ4_XS stand for."""

Indices = npt.NDArray[np.uint32]


@cache
def codebook(name: str) -> I8:
    """[entries, 8 or 4] of iq1s, iq2xxs, iq2xs, iq2s, iq3xxs or iq3s."""
    with np.load(Path(__file__).with_name("codebooks.npz")) as tables:
        table: I8 = tables[name]
    return table


def iq1_s(blocks: U8) -> F32:
    """d, 32 bytes of low index bits, 8 words; groups of 32: x = d · (2s + 1) · (entry ± 1/8).

    A word: four times 3 upper index bits, s in bits 12 … 14, and the shift's sign on top.
    """
    upper = words(blocks[:, 34:50], "<u2")
    scales = halves(blocks[:, :2]) * (2 * (upper >> 12 & 7) + 1).astype(np.float32)
    index = blocks[:, 2:34] | _fields(upper, 3, 4) << 8
    shift = np.where(upper & 0x8000, np.float32(-0.125), np.float32(0.125))
    values = codebook("iq1s")[index].reshape(len(blocks), 8, 32) + shift[..., None]
    return scaled(scales, values.reshape(len(blocks), -1))


def iq1_m(blocks: U8) -> F32:
    """32 bytes of low index bits, 16 of upper ones and shifts, 4 words of scales; groups of 16 as in IQ1_S.

    The words' top nibbles, from the first word's, are d; below them are four times 3 bits of s.
    """
    packed = words(blocks[:, 48:], "<u2")
    top = packed >> 12
    d = (top[:, 0] | top[:, 1] << 4 | top[:, 2] << 8 | top[:, 3] << 12).astype("<u2").view("<f2")
    scales = d.astype(np.float32)[:, None] * (2 * _fields(packed, 3, 4) + 1).astype(np.float32)
    upper = planes(blocks[:, 32:48], 1, 4)
    index = blocks[:, :32] | (upper & 7).astype(np.uint32) << 8
    shift = np.where(upper & 8, np.float32(-0.125), np.float32(0.125))
    values = codebook("iq1s")[index] + shift[..., None]
    return scaled(scales, values.reshape(len(blocks), -1))


def iq2_xxs(blocks: U8) -> F32:
    """d, then for each 32 values 4 index bytes and a word of four times 7 sign bits and, on top, s.

    x = d · (s + 1/2) / 4 · ± entry.
    """
    pairs = blocks[:, 2:].reshape(len(blocks), 8, 8)
    index = pairs[..., :4].reshape(len(blocks), 32)
    packed = words(pairs[..., 4:].reshape(len(blocks), 32), "<u4")
    scales = _half_steps(blocks[:, :2], packed >> 28, 0.25)
    return scaled(scales, _signed_entries("iq2xxs", index, _even_signs(_fields(packed, 7, 4))))


def iq2_xs(blocks: U8) -> F32:
    """d, 32 words (9 index bits, 7 sign bits), 8 bytes of 4-bit s; groups of 16: x as in IQ2_XXS."""
    packed = words(blocks[:, 2:66], "<u2")
    scales = _half_steps(blocks[:, :2], planes(blocks[:, 66:], 1, 4), 0.25)
    return scaled(scales, _signed_entries("iq2xs", packed & 511, _even_signs(packed >> np.uint32(9))))


def iq2_s(blocks: U8) -> F32:
    """d, 32 bytes of low index bits, 32 of signs, 8 of upper index bits, 8 of 4-bit s; groups of 16."""
    index = blocks[:, 2:34] | planes(blocks[:, 66:74], 1, 2).astype(np.uint32) << 8
    scales = _half_steps(blocks[:, :2], planes(blocks[:, 74:], 1, 4), 0.25)
    return scaled(scales, _signed_entries("iq2s", index, blocks[:, 34:66]))


def iq3_xxs(blocks: U8) -> F32:
    """d, 64 index bytes, 8 words as in IQ2_XXS; groups of 32: x = d · (s + 1/2) / 2 · ± entry."""
    packed = words(blocks[:, 66:], "<u4")
    scales = _half_steps(blocks[:, :2], packed >> 28, 0.5)
    return scaled(scales, _signed_entries("iq3xxs", blocks[:, 2:66], _even_signs(_fields(packed, 7, 4))))


def iq3_s(blocks: U8) -> F32:
    """d, 64 bytes of low index bits, 8 of upper ones, 32 of signs, 4 of 4-bit s; groups of 32.

    x = d · (2s + 1) · ± entry.
    """
    index = blocks[:, 2:66] | planes(blocks[:, 66:74], 1, 1).astype(np.uint32) << 8
    scales = halves(blocks[:, :2]) * (2 * planes(blocks[:, 106:], 1, 4) + 1).astype(np.float32)
    return scaled(scales, _signed_entries("iq3s", index, blocks[:, 74:106]))


def iq4_nl(blocks: U8) -> F32:
    """d, 16 bytes of nibbles: x = d · curve(q)."""
    return scaled(halves(blocks[:, :2]), FOUR_BIT_CURVE[planes(blocks[:, 2:], 16, 4)])


def iq4_xs(blocks: U8) -> F32:
    """d, a word of the scales' upper 2 bits, 4 bytes of their lower 4, nibbles; x = d · (s - 32) · curve(q).

    Groups of 32.
    """
    bits = planes(blocks[:, 4:8], 1, 4) | planes(blocks[:, 2:4], 1, 2) << 4
    scales = halves(blocks[:, :2]) * (bits.astype(np.int8) - 32).astype(np.float32)
    return scaled(scales, FOUR_BIT_CURVE[planes(blocks[:, 8:], 16, 4)])


def _fields(packed: Indices, bits: int, count: int) -> Indices:
    """[blocks, m] words → [blocks, m · count]: the lowest `count` fields of `bits` bits of each."""
    shifts = np.arange(count, dtype=np.uint32) * np.uint32(bits)
    fields: Indices = packed[..., None] >> shifts & np.uint32(2**bits - 1)
    return fields.reshape(len(packed), -1)


def _half_steps(d: U8, s: npt.NDArray[np.generic], factor: float) -> F32:
    """Scales of groups: d · (s + 1/2) · factor, d as two bytes, s [blocks, groups]."""
    scales: F32 = halves(d) * (np.float32(0.5) + s.astype(np.float32)) * np.float32(factor)
    return scales


def _even_signs(seven: Indices) -> U8:
    """Seven signs → eight: the last is such that the number of minuses is even."""
    parity = seven ^ seven >> 4
    parity = parity ^ parity >> 2
    parity = (parity ^ parity >> 1) & 1
    return (seven | parity << 7).astype(np.uint8)


def _signed_entries(name: str, index: npt.NDArray[np.generic], signs: U8) -> F32:
    """Entries [blocks, m · width] of a codebook, with the signs [blocks, m · width / 8] of their values."""
    values = codebook(name)[index].astype(np.float32).reshape(len(index), -1)
    result: F32 = np.where(planes(signs, 1, 1), -values, values)
    return result
