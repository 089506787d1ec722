"""Dequantization in NumPy: stored bytes → float32, one readable function a type.

This is what a stored type means, and the way the reference backend gets its weights; fast paths in C++ are judged
against it. A function takes blocks [n, bytes of a block] and gives their values [n, values of a block].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from tokentrail.checkpoints.dequantize import codebooks, k_quants, simple
from tokentrail.checkpoints.dequantize.grouped import grouped
from tokentrail.checkpoints.dequantize.unpack import F32, U8
from tokentrail.checkpoints.formats import block_format, grouped_format

__all__ = ["DEQUANTIZED_TYPES", "RUNNABLE_FORMATS", "dequantize", "is_runnable"]

_CHUNK = 1 << 18
"""Values taken at a time: what lies between bytes and result stays small, and in the cache."""

_TYPES: dict[str, Callable[[U8], F32]] = {
    "F32": simple.f32,
    "F16": simple.f16,
    "BF16": simple.bf16,
    "Q1_0": simple.q1_0,
    "Q2_0": simple.q2_0,
    "Q4_0": simple.q4_0,
    "Q4_1": simple.q4_1,
    "Q5_0": simple.q5_0,
    "Q5_1": simple.q5_1,
    "Q8_0": simple.q8_0,
    "TQ1_0": simple.tq1_0,
    "TQ2_0": simple.tq2_0,
    "MXFP4": simple.mxfp4,
    "NVFP4": simple.nvfp4,
    "Q2_K": k_quants.q2_k,
    "Q3_K": k_quants.q3_k,
    "Q4_K": k_quants.q4_k,
    "Q5_K": k_quants.q5_k,
    "Q6_K": k_quants.q6_k,
    "IQ1_S": codebooks.iq1_s,
    "IQ1_M": codebooks.iq1_m,
    "IQ2_XXS": codebooks.iq2_xxs,
    "IQ2_XS": codebooks.iq2_xs,
    "IQ2_S": codebooks.iq2_s,
    "IQ3_XXS": codebooks.iq3_xxs,
    "IQ3_S": codebooks.iq3_s,
    "IQ4_NL": codebooks.iq4_nl,
    "IQ4_XS": codebooks.iq4_xs,
}

DEQUANTIZED_TYPES = frozenset(_TYPES)
"""Types of ggml that models are stored in. (Q8_1 and Q8_K are activations within ggml, and never stored.)"""

RUNNABLE_FORMATS = DEQUANTIZED_TYPES
"""Types of ggml that kernels run: those of them that models are stored in."""


def is_runnable(format: str) -> bool:
    """Whether a tensor of this format can be run."""
    grouped = grouped_format(format)
    return format in RUNNABLE_FORMATS or (grouped is not None and grouped.group % 32 == 0)


def dequantize(data: U8, format: str, shape: tuple[int, ...]) -> F32:
    """Bytes of a tensor of the type `format` → float32 array of `shape` (row-major), newly allocated.

    `data` is uint8, contiguous, exactly the tensor's bytes. Raises `ValueError` for a format that is not known, or
    bytes that do not fit the shape.
    """
    function = _function(format)
    values, nbytes = block_format(format)
    blocks, size = divmod(data.nbytes, nbytes)[0], math.prod(shape)
    if blocks * nbytes != data.nbytes or blocks * values != size:
        raise ValueError(f"{data.nbytes} bytes of {format} are {blocks * values} elements, not shape {shape}")
    stored = np.ascontiguousarray(data).reshape(blocks, nbytes)
    result = np.empty((blocks, values), np.float32)
    step = max(1, _CHUNK // values)
    with np.errstate(
        invalid="ignore", over="ignore"
    ):  # damaged scales are not numbers, and nor is what they give
        for start in range(0, blocks, step):
            result[start : start + step] = function(stored[start : start + step])
    return result.reshape(shape)


def _function(format: str) -> Callable[[U8], F32]:
    function = _TYPES.get(format)
    if function is not None:
        return function
    form = grouped_format(format)
    if form is None:
        raise ValueError(f"no dequantization for {format}")
    return partial(grouped, bits=form.bits)
