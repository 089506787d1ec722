"""Checkpoints of the `compressed-tensors` library (llm-compressor): one configuration for several layouts.

- `pack-quantized` (W4A16, W8A16): weight_packed, int32 [n, k · bits / 32], the values of a row one after the other, the
  first in the lowest bits, each plus 2^(bits - 1); weight_scale [n, groups], one a row, or one; weight_zero_point where
  they are not symmetric, packed likewise along n, or int8; weight_g_idx, int32 [k], the group of each column where
  groups are scattered (`actorder: group`).
- `int-quantized` (W8A8): weight, int8 [n, k], and weight_scale. Activations are rounded to int8 by our kernels anyway.
- `float-quantized`: see `fp8.py`.

Which layers are stored how is seen from their tensors; the configuration says how many bits those have.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentrail.checkpoints.dequantize.grouped import unpacked
from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.formats import GROUP_HEADER, GroupedFormat
from tokentrail.checkpoints.fp8 import block_shape, float8_tensor, unused
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Tensor
from tokentrail.checkpoints.name_patterns import UnknownPattern, name_pattern
from tokentrail.checkpoints.quantized_layers import (
    F16,
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

_PACKED = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
_LAYOUTS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "dense",
    "mixed-precision",
)
_WORKS = "Models in pack-quantized (W4A16), int-quantized (W8A8) or float-quantized (FP8) work, or a GGUF file of it."


@dataclass(frozen=True)
class _Scheme:
    """How the weights of a group of layers are quantized."""

    targets: tuple[str, ...]
    """Layers' names, classes of layers, or `re:` and a pattern of names."""
    bits: int
    kind: str
    """int or float."""
    block: tuple[int, int] | None


def read_compressed_tensors(
    stored: Mapping[str, StoredTensor], settings: Metadata
) -> tuple[dict[str, Tensor], Set[str]]:
    """See `hf_quantized.QuantReader`."""
    schemes = _schemes(settings)

    def read(layer: StoredLayer) -> Tensor | None:
        if layer.parts.keys() == {"weight"}:
            return None
        scheme = _scheme_of(layer.name, schemes, settings)
        if "weight" not in layer.parts:
            return _packed_tensor(layer, scheme)
        if scheme.kind == "float":
            return float8_tensor(layer, scheme.block)
        return _int8_tensor(layer, scheme)

    tensors, used = read_layers(stored, ("weight", *_PACKED), read)
    return tensors, used | unused(stored)


def _schemes(settings: Metadata) -> list[_Scheme]:
    _check_layout(settings, settings.text("format", "dense"))
    sparsity = settings.nested("sparsity_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        problem = f"has the sparse layout {quoted(sparsity.text('format'))}, which is not supported"
        raise file_error(settings.path, problem, _WORKS)
    groups = settings.nested("config_groups")
    schemes = []
    for name in () if groups is None else groups.values:
        assert groups is not None
        group = groups.nested(name)
        weights = None if group is None else group.nested("weights")
        if group is None or weights is None:
            continue
        _check_layout(settings, group.text("format", "dense"))
        bits = weights.integer("num_bits", low=1, high=64)
        kind = weights.text("type", "int")
        if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
            problem = f"has weights of {bits} bits of the type {quoted(kind)}, which are not supported"
            raise file_error(settings.path, problem, _WORKS)
        block = block_shape(weights, "block_structure")
        schemes.append(_Scheme(tuple(group.texts("targets")), bits, kind, block))
    return schemes


def _check_layout(settings: Metadata, layout: str) -> None:
    if layout not in _LAYOUTS:
        problem = f"has weights in the layout {quoted(layout)}, which is not supported"
        raise file_error(settings.path, problem, _WORKS)


def _scheme_of(layer: str, schemes: list[_Scheme], settings: Metadata) -> _Scheme:
    """The scheme that names the layer, or a pattern of its name, or else its class."""

    def names(target: str) -> bool:
        if target.startswith("re:"):
            try:
                return name_pattern(target[3:]).matches(layer)
            except UnknownPattern as error:
                problem = f"names layers by {quoted(target)}, which is no pattern that can be read ({error})"
                raise file_error(settings.path, problem, "Name them by simpler ones.") from None
        return target == layer or layer.endswith("." + target)

    for scheme in schemes:
        if any(names(target) for target in scheme.targets):
            return scheme
    for scheme in schemes:
        if "Linear" in scheme.targets:
            return scheme
    problem = (
        f"holds the quantized layer {quoted(layer)}, but its quantization_config does not say how it was made"
    )
    raise file_error(settings.path, problem, "Download the model again.")


def _packed_tensor(layer: StoredLayer, scheme: _Scheme) -> Tensor:
    packed = layer.part("weight_packed", "I32")
    n, words = packed.shape
    bits = scheme.bits
    k = 32 * words // bits
    if "weight_shape" in layer.parts:
        shape = layer.part("weight_shape", "I64", "I32", shape=(2,))
        said = tuple(int(size) for size in shape.array())
        if said != (n, k):
            fail(shape, f"says {said}, but {quoted(packed.name)} holds {(n, k)} values of {bits} bits")
    scales, groups = _scales(layer, n, k)
    form = GroupedFormat(bits, k // groups)
    zeros = layer.parts.get("weight_zero_point")
    if zeros is not None:
        if zeros.dtype == "I32":
            layer.part("weight_zero_point", "I32", shape=(-(-n * bits // 32), groups))
        else:
            layer.part("weight_zero_point", "I8", shape=scales.shape)
    order = None
    if "weight_g_idx" in layer.parts:
        order = group_order(layer.part("weight_g_idx", "I32", "I64", shape=(k,)), form.group, groups)
    return layer.tensor(
        (n, k), form.name, lambda: _transcode(form, packed, zeros, _by_row(scales, n, groups), order), order
    )


def _int8_tensor(layer: StoredLayer, scheme: _Scheme) -> Tensor:
    weight = layer.part("weight", "I8")
    n, k = weight.shape
    if scheme.bits != 8:
        fail(weight, f"is of type I8, but the model's quantization_config says {scheme.bits} bits")
    scales, groups = _scales(layer, n, k)
    zeros = layer.parts.get("weight_zero_point")
    if zeros is not None:
        layer.part("weight_zero_point", "I8", shape=scales.shape)
    form = GroupedFormat(8, k // groups)
    return layer.tensor(
        (n, k), form.name, lambda: _transcode(form, weight, zeros, _by_row(scales, n, groups), None)
    )


def _scales(layer: StoredLayer, n: int, k: int) -> tuple[StoredTensor, int]:
    """The layer's scales, and how many groups a row has."""
    scales = layer.parts.get("weight_scale") or layer.part("weight_scale", *FLOATS)
    groups = scales.shape[1] if len(scales.shape) == 2 else 1
    expected = scales.shape if scales.shape in ((), (1,), (n,), (1, 1)) else (n, groups)
    layer.part("weight_scale", *FLOATS, shape=expected)
    if groups == 0 or k % groups or (k // groups) % 8:
        fail(scales, f"has {groups} groups, which do not divide {k} columns into groups of a multiple of 8")
    return scales, groups


def _by_row(scales: StoredTensor, n: int, groups: int) -> F16:
    """[n, groups], whether they are stored so or one for all."""
    values = half_scales(scales)
    return np.broadcast_to(values.reshape(-1, groups), (n, groups))


def _transcode(
    form: GroupedFormat, weight: StoredTensor, zeros: StoredTensor | None, scales: F16, order: I32 | None
) -> U8:
    n, groups = scales.shape
    blocks = grouped_blocks(form, scales, _zero_points(form.bits, zeros, n, groups))
    rows = weight.data.reshape(n, -1)
    if order is None:
        blocks[..., GROUP_HEADER:] = rows.reshape(n, groups, -1)
    else:
        columns = pack_rows(unpack_rows(rows.T, form.bits)[order], form.bits)
        for at, group in enumerate(np.split(columns, groups)):
            fill_columns(blocks, at, group)
    if weight.dtype == "I8":
        blocks[..., GROUP_HEADER:] ^= 0x80  # -128 … 127 → 0 … 255
    return blocks.reshape(-1)


def _zero_points(bits: int, zeros: StoredTensor | None, n: int, groups: int) -> Any:
    """[n, groups] or one number for all; of values that are stored plus 2^(bits - 1)."""
    middle = 1 << bits - 1
    if zeros is None:
        return middle
    if zeros.dtype == "I8":
        values = zeros.array().astype(np.int16) + middle
        if values.min() < 0 or values.max() >= 1 << bits:
            fail(zeros, f"holds zero points outside of {bits} bits")
        return values.astype(np.uint8).reshape(-1, groups)
    # Words along n: [n · bits / 32, groups] → bytes [groups, n · bits / 8] → values
    columns = np.ascontiguousarray(zeros.array().T).view(np.uint8)
    return unpacked(columns, bits)[:, :n].T
