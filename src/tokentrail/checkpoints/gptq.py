"""GPTQ checkpoints (Frantar et al. 2022, arXiv:2210.17323) as AutoGPTQ and gptqmodel write them.

A layer [n, k] of 2, 3, 4 or 8 bits is stored as

- qweight, int32 [k · bits / 32, n]: the values of a column one after the other, the first in the lowest bits (those of
  3 bits run over the borders of words);
- qzeros, int32 [k / group, n · bits / 32]: zero points of a group one after the other, likewise;
- scales [k / group, n]: x = scale · (q - zero);
- g_idx, int32 [k]: the group of each k. In files made with `desc_act` groups are scattered; then the stored columns are
  sorted by group, and the order is kept beside (`Tensor.column_order`).

The format `gptq` (the first, and the default) stores zero points less one, `gptq_v2` as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from tokentrail.checkpoints.dequantize.grouped import unpacked
from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.formats import GROUP_BITS, GroupedFormat
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Tensor
from tokentrail.checkpoints.quantized_layers import (
    FLOATS,
    I32,
    U8,
    StoredLayer,
    fail,
    fill_columns,
    group_order,
    grouped_blocks,
    half_scales,
    pack_rows,
    read_layers,
    unpack_rows,
)
from tokentrail.checkpoints.safetensors import StoredTensor

_WORDS = ("qweight", "qzeros", "scales", "g_idx")


def read_gptq(stored: Mapping[str, StoredTensor], settings: Metadata) -> tuple[dict[str, Tensor], Set[str]]:
    """See `hf_quantized.QuantReader`."""
    less_one = _check(settings)
    return read_layers(stored, _WORDS, lambda layer: _tensor(layer, settings, less_one))


def _check(settings: Metadata) -> bool:
    """Whether zero points are stored less one. Raises for what is not read."""
    bits = settings.integer("bits", low=1, high=64)
    if bits not in GROUP_BITS:
        raise _unsupported(settings, f"has {bits} bits", "2, 3, 4 or 8 bits")
    if settings.flag("is_marlin_format", False):
        raise _unsupported(settings, "has the layout 'marlin'", "the layout gptq or gptq_v2")
    layout = settings.text("checkpoint_format", settings.text("format", "gptq"))
    if layout not in ("gptq", "gptq_v2"):
        raise _unsupported(settings, f"has the layout {quoted(layout)}", "the layout gptq or gptq_v2")
    packing = settings.text("pack_dtype", "int32")
    if packing != "int32":
        raise _unsupported(settings, f"is packed into {quoted(packing)}", "pack_dtype int32")
    return layout == "gptq"


def _unsupported(settings: Metadata, what: str, works: str) -> Exception:
    return file_error(
        settings.path,
        f"is a GPTQ model that {what}",
        f"Models with {works} work, or a GGUF file of the model.",
    )


def _tensor(layer: StoredLayer, settings: Metadata, less_one: bool) -> Tensor:
    qweight = layer.part("qweight", "I32")
    scales = layer.part("scales", *FLOATS)
    groups, n = scales.shape
    # The shapes alone say how many bits a layer has: some models have layers of different widths (`dynamic`).
    columns = layer.part("qzeros", "I32").shape[1]
    bits = 32 * columns // n
    if bits not in GROUP_BITS or n * bits != 32 * columns:
        fail(layer.parts["qzeros"], f"has {columns} columns, which fits no number of bits of {n} values")
    layer.part("qzeros", "I32", shape=(groups, columns))
    layer.part("qweight", "I32", shape=(qweight.shape[0], n))
    if "dynamic" not in settings and bits != settings.integer("bits", low=1, high=64):
        fail(qweight, f"has {bits} bits, but the model's quantization_config says {settings.values['bits']}")
    k = 32 * qweight.shape[0] // bits
    if k % groups or k % 32 or (k // groups) % 8 or k * bits != 32 * qweight.shape[0]:
        fail(scales, f"has {groups} groups, which do not divide {k} values into groups of a multiple of 8")
    form = GroupedFormat(bits, k // groups)
    order = None
    if "g_idx" in layer.parts:
        g_idx = layer.part("g_idx", "I32", "I64", shape=(k,))
        order = group_order(g_idx, form.group, groups)
        if order is not None and ".experts." in layer.name:
            remedy = "Models of experts made with desc_act: false work, or a GGUF file of the model."
            fail(g_idx, "scatters the groups of an expert, which is not supported", remedy)
    return layer.tensor((n, k), form.name, lambda: _transcode(form, layer, less_one, order), order)


def _transcode(form: GroupedFormat, layer: StoredLayer, less_one: bool, order: I32 | None) -> U8:
    qweight, qzeros = layer.parts["qweight"], layer.parts["qzeros"]
    blocks = grouped_blocks(
        form, half_scales(layer.parts["scales"]).T, zero_points(qzeros, form.bits, less_one).T
    )
    n, groups = blocks.shape[:2]
    group_bytes = form.group * form.bits // 8
    # [words, n, 4 bytes of a word] → [bytes along k, n]
    rows = qweight.data.reshape(-1, n, 4).swapaxes(1, 2).reshape(-1, n)
    if order is not None:
        rows = pack_rows(unpack_rows(rows, form.bits)[order], form.bits)
    for at in range(groups):
        fill_columns(blocks, at, rows[at * group_bytes : (at + 1) * group_bytes])
    return blocks.reshape(-1)


def zero_points(qzeros: StoredTensor, bits: int, less_one: bool) -> U8:
    """[groups, n], as they are subtracted."""
    groups = qzeros.shape[0]
    if not less_one:
        return unpacked(qzeros.data.reshape(groups, -1), bits)
    if bits == 3:
        zeros: U8 = unpacked(qzeros.data.reshape(groups, -1), bits) + np.uint8(1) & np.uint8(7)
        return zeros
    # In words, as writers subtract it: a zero point of 0 has borrowed from the next one.
    one = sum(1 << shift for shift in range(0, 32, bits))
    words = qzeros.data.view("<u4") + np.uint32(one)
    return unpacked(words.view(np.uint8).reshape(groups, -1), bits)
