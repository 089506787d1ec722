"""AWQ checkpoints (Lin et al. 2023, arXiv:2306.00978) in AutoAWQ's GEMM layout.

A layer [n, k] is stored as

- qweight, int32 [k, n / 8]: eight columns of a row in a word, nibble j holding column ORDER[j];
- qzeros, int32 [k / group, n / 8]: zero points, likewise;
- scales, float16 [k / group, n]: x = scale · (q - zero).
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.formats import GroupedFormat
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Tensor
from tokentrail.checkpoints.quantized_layers import (
    FLOATS,
    U8,
    StoredLayer,
    fail,
    fill_columns,
    grouped_blocks,
    half_scales,
    read_layers,
)
from tokentrail.checkpoints.safetensors import StoredTensor

LOW, FOUR = np.uint8(15), np.uint8(4)
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_WORDS = ("qweight", "qzeros", "scales")


def read_awq(stored: Mapping[str, StoredTensor], settings: Metadata) -> tuple[dict[str, Tensor], Set[str]]:
    """See `hf_quantized.QuantReader`."""
    group = _check(settings)
    return read_layers(stored, _WORDS, lambda layer: _tensor(layer, group))


def _check(settings: Metadata) -> int:
    """The group size: values of k that share a scale; -1: all. Raises for what is not read."""
    bits = settings.integer(
        "bits", low=1, high=64, default=settings.integer("w_bit", low=1, high=64, default=4)
    )
    if bits != 4:
        raise _unsupported(settings, f"has {bits} bits", "4 bits")
    version = settings.text("version", settings.text("format", settings.text("checkpoint_format", "gemm")))
    if version.lower() != "gemm":
        raise _unsupported(settings, f"has the layout {quoted(version)}", "the layout gemm")
    if not settings.flag("zero_point", True):
        raise _unsupported(settings, "has no zero points", "zero points (zero_point: true)")
    older = settings.integer("q_group_size", low=-1, high=1 << 20, default=128)
    group = settings.integer("group_size", low=-1, high=1 << 20, default=older)
    if group != -1 and (group < 8 or group % 8):
        raise _unsupported(settings, f"has groups of {group} values", "groups of 32, 64 or 128")
    return group


def _unsupported(settings: Metadata, what: str, works: str) -> Exception:
    return file_error(
        settings.path,
        f"is an AWQ model that {what}",
        f"Models with {works} work, or a GGUF file of the model.",
    )


def _tensor(layer: StoredLayer, group: int) -> Tensor:
    qweight = layer.part("qweight", "I32")
    k, words = qweight.shape
    n = 8 * words
    group = k if group == -1 else group
    if k % group or group % 8:
        fail(qweight, f"has {k} rows, which is not a multiple of the group size {group}")
    qzeros = layer.part("qzeros", "I32", shape=(k // group, words))
    scales = layer.part("scales", *FLOATS, shape=(k // group, n))
    form = GroupedFormat(4, group)
    return layer.tensor((n, k), form.name, lambda: _transcode(form, qweight, qzeros, scales))


def _transcode(form: GroupedFormat, qweight: StoredTensor, qzeros: StoredTensor, scales: StoredTensor) -> U8:
    k, words = qweight.shape
    packed_zeros = qzeros.data.reshape(-1, words, 4)
    zeros = _in_order(packed_zeros & LOW, packed_zeros >> FOUR)
    blocks = grouped_blocks(form, half_scales(scales).T, zeros.T)
    pairs = qweight.data.reshape(k // form.group, form.group // 2, 2, words, 4)
    for at, pair in enumerate(pairs):
        first, second = pair[:, 0], pair[:, 1]
        # Bytes of two values along k: the low nibbles of two rows together, and the high ones.
        fill_columns(blocks, at, _in_order(first & LOW | second << FOUR, first >> FOUR | second & ~LOW))
    return blocks.reshape(-1)


def _in_order(low: U8, high: U8) -> U8:
    """What belongs to low and high nibbles of words, [rows, words, 4 bytes] each → [rows, 8 · words] by column."""
    ordered = np.empty((*low.shape[:2], 8), np.uint8)
    ordered[..., ORDER[0::2]] = low
    ordered[..., ORDER[1::2]] = high
    return ordered.reshape(len(ordered), -1)
