"""The tensor types of ggml: how many elements a block holds, and how many bytes it takes.

A quantized tensor is a row-major run of blocks along its last (fastest) dimension, so its size follows from
its shape alone. Ids and sizes: ggml.h / ggml-common.h, and docs/gguf.md in the ggml repository.
"""

from __future__ import annotations

from typing import NamedTuple


class GGMLType(NamedTuple):
    """One storage type."""

    id: int
    name: str
    block_size: int
    """Elements in a block; a row's length must be a multiple of it."""
    block_bytes: int

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` elements, a multiple of `block_size`."""
        return elements // self.block_size * self.block_bytes


GGML_TYPES: dict[int, GGMLType] = {
    id: GGMLType(id, name, block_size, block_bytes)
    for id, name, block_size, block_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 2 + 16),
        (3, "Q4_1", 32, 2 + 2 + 16),
        (6, "Q5_0", 32, 2 + 4 + 16),
        (7, "Q5_1", 32, 2 + 2 + 4 + 16),
        (8, "Q8_0", 32, 2 + 32),
        (9, "Q8_1", 32, 4 + 4 + 32),
        (10, "Q2_K", 256, 2 + 2 + 16 + 64),
        (11, "Q3_K", 256, 2 + 12 + 32 + 64),
        (12, "Q4_K", 256, 2 + 2 + 12 + 128),
        (13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128),
        (14, "Q6_K", 256, 2 + 16 + 64 + 128),
        (15, "Q8_K", 256, 4 + 256 + 32),
        (16, "IQ2_XXS", 256, 2 + 64),
        (17, "IQ2_XS", 256, 2 + 64 + 8),
        (18, "IQ3_XXS", 256, 2 + 64 + 32),
        (19, "IQ1_S", 256, 2 + 32 + 16),
        (20, "IQ4_NL", 32, 2 + 16),
        (21, "IQ3_S", 256, 2 + 64 + 8 + 32 + 4),
        (22, "IQ2_S", 256, 2 + 64 + 16),
        (23, "IQ4_XS", 256, 2 + 2 + 4 + 128),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 32 + 16 + 8),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 2 + 4 + 48),
        (35, "TQ2_0", 256, 2 + 64),
        (39, "MXFP4", 32, 1 + 16),
        (40, "NVFP4", 64, 4 + 32),
        (41, "Q1_0", 128, 2 + 16),
        (42, "Q2_0", 64, 2 + 16),
    )
}

REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Ids that ggml has withdrawn; files with them must be converted again."""
