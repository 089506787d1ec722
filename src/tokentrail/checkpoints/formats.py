"""Stored formats by name, and how many bytes values take in them.

Besides ggml's types there are grouped integers, to which readers of other quantized checkpoints turn what they find:
`G{bits}_{group}`, for example `G4_128`. A row is a run of blocks of `group` values: a float16 scale, a uint8 zero
point, then group · bits / 8 bytes of unsigned values, the first value in the lowest bits; x = scale · (value - zero).
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

from tokentrail.checkpoints.ggml_types import GGML_TYPES

GROUP_BITS = (2, 3, 4, 8)
GROUP_HEADER = 3
"""Bytes of a block of grouped integers before its values: scale and zero point."""

_GROUPED = re.compile(r"G([2348])_([1-9][0-9]{0,8})")


class BlockFormat(NamedTuple):
    """A row is a run of blocks of `values` values in `nbytes` bytes."""

    values: int
    nbytes: int


class GroupedFormat(NamedTuple):
    """`G{bits}_{group}`."""

    bits: int
    group: int
    """A multiple of 8, so that every block ends with a whole byte."""

    @property
    def name(self) -> str:
        return f"G{self.bits}_{self.group}"

    @property
    def block(self) -> BlockFormat:
        return BlockFormat(self.group, GROUP_HEADER + self.group * self.bits // 8)


_BLOCKS = {type.name: BlockFormat(type.block_size, type.block_bytes) for type in GGML_TYPES.values()}


def grouped_format(format: str) -> GroupedFormat | None:
    """What `G{bits}_{group}` says, or None for any other format."""
    found = _GROUPED.fullmatch(format)
    if found is None or int(found[2]) % 8:
        return None
    return GroupedFormat(int(found[1]), int(found[2]))


@lru_cache(maxsize=256)
def block_format(format: str) -> BlockFormat:
    """Values and bytes of a block. Raises `ValueError` for a format that is not known."""
    known = _BLOCKS.get(format)
    if known is not None:
        return known
    grouped = grouped_format(format)
    if grouped is None:
        raise ValueError(f"no stored format is called {format}")
    return grouped.block


def stored_bytes(format: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array of `shape` in a format. Raises `ValueError` where its rows are not whole blocks."""
    values, nbytes = block_format(format)
    if shape[-1] % values:
        raise ValueError(f"rows of {shape[-1]} values are not whole blocks of {format}")
    return math.prod(shape) // values * nbytes
