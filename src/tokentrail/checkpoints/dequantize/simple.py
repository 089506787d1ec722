"""Numbers stored as they are, and blocks with one scale (or a scale and a minimum) of their own.

Layouts: ggml-common.h of ggml. `d` is a scale, `m` a minimum, both float16; `q` unsigned values as they are stored.
"""

from __future__ import annotations

import numpy as np

from tokentrail.checkpoints.dequantize.unpack import F32, U8, halves, planes, scaled, signed

E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""4-bit floats (sign, two bits of exponent, one of mantissa), doubled so that they are whole numbers."""


def f32(blocks: U8) -> F32:
    return blocks.view("<f4").astype(np.float32)


def f16(blocks: U8) -> F32:
    return halves(blocks)


def bf16(blocks: U8) -> F32:
    """bfloat16 is the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def q1_0(blocks: U8) -> F32:
    """d, then 128 bits: x = d where the bit is set, else -d."""
    return scaled(halves(blocks[:, :2]), 2 * planes(blocks[:, 2:], 1, 1).astype(np.int8) - 1)


def q2_0(blocks: U8) -> F32:
    """d, 64 values of two bits: x = d · (q - 1)."""
    return scaled(halves(blocks[:, :2]), planes(blocks[:, 2:], 1, 2).astype(np.int8) - 1)


def q4_0(blocks: U8) -> F32:
    """d, 16 bytes of nibbles (low ones first): x = d · (q - 8)."""
    return scaled(halves(blocks[:, :2]), planes(blocks[:, 2:], 16, 4).astype(np.int8) - 8)


def q4_1(blocks: U8) -> F32:
    """d, m, nibbles as above: x = d · q + m."""
    return scaled(halves(blocks[:, :2]), planes(blocks[:, 4:], 16, 4)) + halves(blocks[:, 2:4])


def q5_0(blocks: U8) -> F32:
    """d, 32 fifth bits, nibbles: x = d · (q - 16)."""
    q = planes(blocks[:, 6:], 16, 4) | planes(blocks[:, 2:6], 1, 1) << 4
    return scaled(halves(blocks[:, :2]), q.astype(np.int8) - 16)


def q5_1(blocks: U8) -> F32:
    """d, m, 32 fifth bits, nibbles: x = d · q + m."""
    q = planes(blocks[:, 8:], 16, 4) | planes(blocks[:, 4:8], 1, 1) << 4
    return scaled(halves(blocks[:, :2]), q) + halves(blocks[:, 2:4])


def q8_0(blocks: U8) -> F32:
    """d, 32 signed bytes: x = d · q."""
    return scaled(halves(blocks[:, :2]), signed(blocks[:, 2:]))


def tq1_0(blocks: U8) -> F32:
    """48 + 4 bytes of ternary digits, d: x = d · (digit - 1).

    A byte is a fraction of 256 whose digits in base three come out from the top, by multiplying with 3: five from each
    of the 48, in planes of 32 and of 16 bytes, and four from each of the last four.
    """
    digits = []
    for first, last, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = 3 ** np.arange(count, dtype=np.uint8)
        fractions = (
            blocks[:, None, first:last] * powers[:, None]
        )  # modulo 256: the digits already out are gone
        digits.append((fractions.astype(np.uint16) * 3 >> 8).reshape(len(blocks), -1))
    return scaled(halves(blocks[:, 52:]), np.concatenate(digits, axis=1).astype(np.int8) - 1)


def tq2_0(blocks: U8) -> F32:
    """64 bytes of 2-bit values in planes of 32 bytes, d: x = d · (q - 1)."""
    return scaled(halves(blocks[:, 64:]), planes(blocks[:, :64], 32, 2).astype(np.int8) - 1)


def mxfp4(blocks: U8) -> F32:
    """A byte of exponent e, nibbles of 4-bit floats: x = 2^(e - 127) · float (OCP Microscaling Formats 1.0)."""
    exponents = blocks[:, :1].astype(np.uint32)
    # As bits of float32, and half of it, since E2M1 is doubled; below 2^-126 floats are subnormal.
    half = np.where(exponents < 2, np.uint32(1 << 21) << exponents, (exponents - 1) << 23).view(np.float32)
    return scaled(half, E2M1[planes(blocks[:, 1:], 16, 4)])


def _unsigned_e4m3() -> F32:
    """Floats of four bits of exponent (bias 7) and three of mantissa, by byte; bit 7 is ignored, 127 is zero."""
    bytes = np.arange(256)
    exponents, mantissas = bytes >> 3 & 15, bytes & 7
    values = np.where(exponents == 0, mantissas / 8 * 2.0**-6, (1 + mantissas / 8) * 2.0 ** (exponents - 7))
    values[127] = 0
    return values.astype(np.float32)


def nvfp4(blocks: U8) -> F32:
    """Four 8-bit floats d, then for each of them 8 bytes of 4-bit floats, low nibbles first: x = d · float."""
    half = _unsigned_e4m3()[blocks[:, :4]] * np.float32(0.5)  # since E2M1 is doubled
    return scaled(half, E2M1[planes(blocks[:, 4:], 8, 4)])
