"""Quantization on loading, by the kernels and on all threads. What it chooses, and the meaning in NumPy, are in
`checkpoints/quantize.py`."""

from __future__ import annotations

import os
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tokentrail.ops.native import _native
from tokentrail.ops.native.resources import default_threads

U8 = npt.NDArray[np.uint8]
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18}
VALUE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
GROUP = 32


class WeightQuantizer:
    """A `checkpoints.quantize.Quantizer`. Its threads start with the first tensor, and end with this object."""

    def __init__(self, threads: int | None = None, isa: str | None = None) -> None:
        self._threads = default_threads() if threads is None else threads
        self._isa = isa or os.environ.get("TOKENTRAIL_ISA") or _native.available_isas()[0]

    @cached_property
    def _pool(self) -> _native.ThreadPool:
        return _native.ThreadPool(self._threads)

    def __call__(self, data: U8, format: str, target: str) -> tuple[U8, float, float]:
        """Bytes of whole groups of 32 values in `format` → blocks [bytes] in `target`; sums of the squares of errors,
        and of values. No byte depends on the number of threads."""
        values = np.ascontiguousarray(data).reshape(-1)
        groups = len(values) // (GROUP * VALUE_BYTES[format])
        blocks = np.empty(groups * BLOCK_BYTES[target], np.uint8)
        errors, squares = _native.quantize_weights(self._pool, self._isa, format, target, values, blocks)
        return blocks, errors, squares
