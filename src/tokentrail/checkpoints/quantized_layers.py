"""What readers of quantized Hugging Face checkpoints share: the stored parts of a linear layer, and grouped integers.

A layer that was `….q_proj.weight` is stored in several tensors (`….q_proj.qweight`, `.scales` …). A reader checks their
types and shapes when the checkpoint is opened, and makes the bytes of `G{bits}_{group}` (`formats.py`) of them when
they are asked for, a layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error, quoted
from tokentrail.checkpoints.formats import GROUP_HEADER, GroupedFormat, stored_bytes
from tokentrail.checkpoints.model import Deferred, Tensor
from tokentrail.checkpoints.safetensors import StoredTensor

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]

FLOATS = ("F16", "BF16", "F32")
ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN = (np.uint8(number) for number in range(1, 8))


@dataclass(frozen=True)
class StoredLayer:
    """The stored tensors of one linear layer, by the last word of their names."""

    name: str
    """What stands before the words, such as `model.layers.0.self_attn.q_proj`."""
    parts: Mapping[str, StoredTensor]

    def part(self, word: str, *types: str, shape: Sequence[int] | None = None, rank: int = 2) -> StoredTensor:
        """A tensor that must be there, of one of the types and of the shape, or of `rank` dimensions that are not 0."""
        tensor = self.parts.get(word)
        if tensor is None:
            other = next(iter(self.parts.values()))
            problem = (
                f"the tensor {quoted(f'{self.name}.{word}')} is missing, though {quoted(other.name)} is there"
            )
            raise file_error(other.path, problem, DOWNLOAD_AGAIN)
        if tensor.dtype not in types:
            fail(tensor, f"is of type {tensor.dtype}, not {' or '.join(types)}")
        if shape is not None and tensor.shape != tuple(shape):
            fail(
                tensor, f"has the shape {tensor.shape}, but the layer's other tensors ask for {tuple(shape)}"
            )
        if shape is None and (len(tensor.shape) != rank or 0 in tensor.shape):
            fail(tensor, f"has the shape {tensor.shape}; {rank} dimensions are needed")
        return tensor

    def release(self) -> None:
        for tensor in self.parts.values():
            tensor.release()

    def tensor(
        self,
        shape: tuple[int, int],
        format: str,
        make: Callable[[], U8],
        column_order: I32 | None = None,
    ) -> Tensor:
        """The layer's weight. `make` gives the bytes of `format`."""
        deferred = Deferred(stored_bytes(format, shape), make)
        return Tensor(f"{self.name}.weight", shape, format, deferred, self.release, column_order)


def fail(tensor: StoredTensor, problem: str, remedy: str = DOWNLOAD_AGAIN) -> NoReturn:
    """Raise `ModelFileError` about a tensor."""
    raise file_error(tensor.path, f"tensor {quoted(tensor.name)} {problem}", remedy)


def stored_layers(stored: Mapping[str, StoredTensor], words: Sequence[str]) -> Iterator[StoredLayer]:
    """All layers that have a tensor whose name ends with one of `words`."""
    layers: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        prefix, _, word = name.rpartition(".")
        if word in words and prefix:
            layers.setdefault(prefix, {})[word] = tensor
    for name, parts in layers.items():
        yield StoredLayer(name, parts)


def read_layers(
    stored: Mapping[str, StoredTensor], words: Sequence[str], read: Callable[[StoredLayer], Tensor | None]
) -> tuple[dict[str, Tensor], set[str]]:
    """What `hf_quantized.QuantReader` gives, of every layer that has one of `words`; `read` gives None for a layer that
    is not quantized.
    """
    tensors: dict[str, Tensor] = {}
    used: set[str] = set()
    for layer in stored_layers(stored, words):
        tensor = read(layer)
        if tensor is not None:
            tensors[tensor.name] = tensor
            used |= {part.name for part in layer.parts.values()}
    return tensors, used


def floats(tensor: StoredTensor) -> F32:
    """Values of a tensor in F16, BF16, F32 or F8_E8M0, of its shape. They must be numbers."""
    if tensor.dtype == "BF16":
        values = (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    elif tensor.dtype == "F8_E8M0":
        values = np.ldexp(np.float32(1), tensor.data.astype(np.int32) - 127).reshape(tensor.shape)
    else:
        values = tensor.array().astype(np.float32)
    if not np.isfinite(values).all():
        fail(tensor, "holds values that are not numbers")
    return values


def half_scales(tensor: StoredTensor) -> F16:
    """Scales in float16, as grouped integers keep them."""
    if tensor.dtype == "F16":
        values: F16 = tensor.array()
        if not np.isfinite(values).all():
            fail(tensor, "holds values that are not numbers")
        return values
    wide = floats(tensor)
    if wide.size and float(np.abs(wide).max()) > float(np.finfo(np.float16).max):
        fail(tensor, "holds scales beyond what float16 holds", "Use another version of the model.")
    return wide.astype(np.float16)


def grouped_blocks(form: GroupedFormat, scales: F16, zeros: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Blocks [n, groups, bytes of a block] with scales and zero points [n, groups]; the values are to be filled in."""
    blocks = np.empty((*scales.shape, form.block.nbytes), np.uint8)
    blocks[..., :2] = np.ascontiguousarray(scales, np.dtype("<f2"))[..., None].view(np.uint8)
    blocks[..., 2] = zeros
    return blocks


def fill_columns(blocks: U8, at: int, packed: U8) -> None:
    """Fill group `at` of blocks [n, groups, …] with packed columns [bytes of a group, n]."""
    blocks[:, at, GROUP_HEADER:] = packed.T


def pack_rows(values: U8, bits: int) -> U8:
    """Values [k, n] below 2^bits → [k · bits / 8, n] bytes that run along k, the first value in the lowest bits."""
    if bits == 8:
        return values
    if bits == 3:  # eight values in three bytes
        v = values.reshape(-1, 8, values.shape[1]).swapaxes(0, 1)
        first = v[0] | v[1] << THREE | v[2] << SIX
        second = v[2] >> TWO | v[3] << ONE | v[4] << FOUR | v[5] << SEVEN
        third = v[5] >> ONE | v[6] << TWO | v[7] << FIVE
        return np.stack((first, second, third), axis=1).reshape(-1, values.shape[1])
    per_byte = 8 // bits
    packed: U8 = values[::per_byte].copy()
    for i in range(1, per_byte):
        packed |= values[i::per_byte] << np.uint8(i * bits)
    return packed


def unpack_rows(packed: U8, bits: int) -> U8:
    """The other way: bytes [m, n] → values [m · 8 / bits, n]."""
    if bits == 8:
        return packed
    columns = packed.shape[1]
    if bits == 3:
        first, second, third = packed.reshape(-1, 3, columns).swapaxes(0, 1)
        eight = (
            first,
            first >> THREE,
            first >> SIX | second << TWO,
            second >> ONE,
            second >> FOUR,
            second >> SEVEN | third << ONE,
            third >> TWO,
            third >> FIVE,
        )
        values: U8 = np.stack(eight, axis=1) & SEVEN
        return values.reshape(-1, columns)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    values = packed[:, None] >> shifts & np.uint8(2**bits - 1)
    return values.reshape(-1, columns)


def group_order(tensor: StoredTensor, group: int, groups: int) -> I32 | None:
    """From the group of each column (`g_idx`) to the order in which groups lie one after the other.

    None where they do already. Raises `ModelFileError` for groups that do not exist or are not of `group` columns.
    """
    of_column = tensor.array().astype(np.int64)
    low, high = int(of_column.min()), int(of_column.max())
    if low < 0 or high >= groups:
        fail(tensor, f"names group {low if low < 0 else high}; there are groups 0 to {groups - 1}")
    if (np.bincount(of_column, minlength=groups) != group).any():
        fail(tensor, f"does not give each of the {groups} groups {group} columns")
    order = np.argsort(of_column, kind="stable").astype(np.int32)
    return None if (order == np.arange(len(order))).all() else order
