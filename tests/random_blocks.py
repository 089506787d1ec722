"""Weights in any stored format, drawn as bytes: every bit pattern that a file may hold; only scales stay numbers."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]


class Blocks(NamedTuple):
    """Blocks of `values` values in `nbytes` bytes, with half-precision factors at `halves`. In formats with minima,
    `quants` is where the values are: without them, minima remain."""

    values: int
    nbytes: int
    halves: tuple[int, ...] = ()
    quants: slice | None = None


BLOCKS = {
    "Q4_0": Blocks(32, 18, (0,)),
    "Q4_1": Blocks(32, 20, (0, 2), slice(4, 20)),
    "Q5_0": Blocks(32, 22, (0,)),
    "Q5_1": Blocks(32, 24, (0, 2), slice(4, 24)),
    "Q8_0": Blocks(32, 34, (0,)),
    "Q2_K": Blocks(256, 84, (80, 82), slice(16, 80)),
    "Q3_K": Blocks(256, 110, (108,)),
    "Q4_K": Blocks(256, 144, (0, 2), slice(16, 144)),
    "Q5_K": Blocks(256, 176, (0, 2), slice(16, 176)),
    "Q6_K": Blocks(256, 210, (208,)),
    "IQ1_S": Blocks(256, 50, (0,)),
    "IQ1_M": Blocks(256, 56),
    "IQ2_XXS": Blocks(256, 66, (0,)),
    "IQ2_XS": Blocks(256, 74, (0,)),
    "IQ2_S": Blocks(256, 82, (0,)),
    "IQ3_XXS": Blocks(256, 98, (0,)),
    "IQ3_S": Blocks(256, 110, (0,)),
    "IQ4_NL": Blocks(32, 18, (0,)),
    "IQ4_XS": Blocks(256, 136, (0,)),
    "TQ1_0": Blocks(256, 54, (52,)),
    "TQ2_0": Blocks(256, 66, (64,)),
    "MXFP4": Blocks(32, 17),
    "NVFP4": Blocks(64, 36),
    "Q1_0": Blocks(128, 18, (0,)),
    "Q2_0": Blocks(64, 18, (0,)),
}
GROUPED = ("G2_32", "G3_32", "G4_32", "G8_32", "G2_128", "G3_64", "G4_64", "G4_128", "G8_128", "G4_1024")


def blocks_of(format: str) -> Blocks:
    grouped = re.fullmatch(r"G(\d)_(\d+)", format)
    if grouped is None:
        return BLOCKS[format]
    bits, group = int(grouped[1]), int(grouped[2])
    return Blocks(group, 3 + group * bits // 8, (0,), slice(3, None))


def random_blocks(format: str, n: int, k: int, random: np.random.Generator) -> U8:
    """The bytes of [n, k] values, flat; k is a multiple of the format's blocks. Scales are around 1, of either sign."""
    form = blocks_of(format)
    blocks = random.integers(0, 256, (n * (k // form.values), form.nbytes), dtype=np.uint8)
    factors = random.uniform(0.5, 1.5, (len(blocks), 2)) * random.choice([-1, 1], (len(blocks), 2))
    halves = factors.astype(np.float16).view(np.uint8).reshape(len(blocks), 2, 2)
    for index, at in enumerate(form.halves):
        blocks[:, at : at + 2] = halves[:, index]
    if format == "MXFP4":
        blocks[:, 0] = random.integers(120, 130, len(blocks))
    if format == "IQ1_M":  # the scale's four nibbles, the lowest first, are the highest of four words
        scale = halves[:, 0].copy().view(np.uint16)[:, 0]
        for word in range(4):
            blocks[:, 49 + 2 * word] = blocks[:, 49 + 2 * word] & 15 | (scale >> 4 * word & 15) << 4
    return blocks.reshape(-1)


def without_quants(format: str, stored: U8) -> U8 | None:
    """The same blocks with all quantized values zero: they mean their minima. None for a format without minima."""
    form = blocks_of(format)
    if form.quants is None:
        return None
    blocks = stored.reshape(-1, form.nbytes).copy()
    blocks[:, form.quants] = 0
    return blocks.reshape(-1)
