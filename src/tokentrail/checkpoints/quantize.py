"""On-load quantization: full-precision checkpoints as 8-bit or 4-bit ones, a tensor at a time when its bytes are used.

`int8` stores matrices as Q8_0, `int4` as Q4_0: groups of 32 values with one scale, which is the least-squares one for
the integers chosen. The embedding and the head stay at 8 bits with `int4`, too: they are read with every token, and
errors there reach the answer directly. Routers of experts and everything that is no matrix stay as they are.

What is chosen is said here in NumPy; who has something faster that chooses alike gives it to `quantize_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.dequantize import dequantize
from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error
from tokentrail.checkpoints.formats import block_format, stored_bytes
from tokentrail.checkpoints.model import Checkpoint, Deferred, Tensor

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

QUANTIZATIONS = ("int8", "int4")
GROUP = 32
Quantizer = Callable[[U8, str, str], tuple[U8, float, float]]
"""Bytes of whole groups of 32, their format (F32, F16, BF16), the type they get (Q8_0, Q4_0) → blocks [bytes]; sums of
the squares of errors, and of values."""
_VERSION = 2
"""Part of the fingerprint: raised by every change of what is chosen."""
_FLOATS = frozenset({"F32", "F16", "BF16"})
_EIGHT_BITS = {"embed": "embedding", "head": "head"}
"""Kept at 8 bits, and how the loss names them."""
_KEPT = ("router", "shared_gate")
_CHUNK = 8192
"""Groups taken at a time: few enough for the cache."""
_Q4_SPANS = (0.9, 1.0)
"""Scales tried, as parts of the one that spans a group's largest value. (More of them gain little: on normally
distributed values the error is 8.4 % with the last alone, 8.25 % with both, 8.1 % with thirty.)"""


@dataclass
class QuantizationLoss:
    """What quantization costs, filled in as tensors are quantized: sums of squares, of errors and of values."""

    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By canonical name."""

    def measure(self, checkpoint: Checkpoint) -> None:
        """Quantize every tensor of the checkpoint that `quantize_checkpoint` gave, for the sake of the loss alone."""
        for tensor in checkpoint.tensors.values():
            if isinstance(tensor.stored, Deferred):
                tensor.stored.make()
                tensor.release()

    def by_part(self) -> dict[str, float]:
        """Relative error, |x - quantized| / |x| in the Euclidean norm, of parts of the model: embedding, head …"""
        parts: dict[str, tuple[float, float]] = {}
        for name, (error, square) in self.sums.items():
            before = parts.get(_part(name), (0.0, 0.0))
            parts[_part(name)] = before[0] + error, before[1] + square
        return {part: (error / square) ** 0.5 if square else 0.0 for part, (error, square) in parts.items()}


def _part(name: str) -> str:
    last = name.rpartition(".")[2]
    if name in _EIGHT_BITS:
        return _EIGHT_BITS[name]
    return "attention" if last in ("q", "k", "v", "o") else "feed_forward"


def quantize_in_numpy(data: U8, format: str, target: str) -> tuple[U8, float, float]:
    """See `Quantizer`."""
    value_bytes = block_format(format).nbytes
    groups = len(data) // (GROUP * value_bytes)
    blocks = np.empty((groups, block_format(target).nbytes), np.uint8)
    errors = squares = 0.0
    for start in range(0, groups, _CHUNK):
        stop = min(start + _CHUNK, groups)
        values = data[start * GROUP * value_bytes : stop * GROUP * value_bytes]
        x = dequantize(values, format, (stop - start, GROUP))
        with np.errstate(
            invalid="ignore", over="ignore"
        ):  # the caller finds what is no number by the squares
            blocks[start:stop] = QUANTIZERS[target](x)
            difference = dequantize(blocks[start:stop].reshape(-1), target, x.shape) - x
        errors += float(np.vdot(difference, difference))
        squares += float(np.vdot(x, x))
    return blocks.reshape(-1), errors, squares


def quantize_checkpoint(
    checkpoint: Checkpoint, kind: str, *, quantize: Quantizer = quantize_in_numpy
) -> tuple[Checkpoint, QuantizationLoss]:
    """The checkpoint with its matrices in `kind`, and the loss, to be known once their bytes have been used.

    Raises `ModelFileError` where they are quantized already, or none can be.
    """
    loss = QuantizationLoss()
    tensors: dict[str, Tensor] = {}
    changed = 0
    for name, tensor in checkpoint.tensors.items():
        target = _target(tensor, kind)
        if target is None:
            tensors[name] = tensor
            continue
        changed += 1
        make = partial(_quantized, tensor, target, loss, quantize, checkpoint.path)
        tensors[name] = replace(
            tensor, format=target, stored=Deferred(stored_bytes(target, tensor.shape), make)
        )
    if not changed:
        formats = sorted({t.format for t in checkpoint.tensors.values() if len(t.shape) == 2} - _FLOATS)
        problem = (
            f"is quantized already ({', '.join(formats)})" if formats else "has no rows of whole groups of 32"
        )
        raise file_error(
            checkpoint.path,
            f"{problem}, so --quantization {kind} has nothing to do",
            "Leave the flag out, or give the model in F32, F16 or BF16.",
        )
    fingerprint = f"{checkpoint.fingerprint}+{kind}.{_VERSION}"
    return replace(checkpoint, tensors=tensors, fingerprint=fingerprint), loss


def _target(tensor: Tensor, kind: str) -> str | None:
    """The type a tensor gets, or None where it stays as it is."""
    if len(tensor.shape) != 2 or tensor.format not in _FLOATS or tensor.shape[1] % GROUP:
        return None
    if tensor.name.endswith(_KEPT):
        return None
    return "Q4_0" if kind == "int4" and tensor.name not in _EIGHT_BITS else "Q8_0"


def _quantized(tensor: Tensor, target: str, loss: QuantizationLoss, quantize: Quantizer, path: Path) -> U8:
    """Bytes of the tensor in `target`; what is lost is noted in `loss`."""
    blocks, errors, squares = quantize(tensor.data, tensor.format, target)
    if not np.isfinite(squares):
        raise file_error(path, f"tensor {tensor.name!r} holds values that are not numbers", DOWNLOAD_AGAIN)
    loss.sums[tensor.name] = errors, squares
    return blocks


def quantize_q8_0(x: F32) -> U8:
    """Groups [n, 32] → Q8_0 blocks [n, 34]."""
    top = np.abs(x).max(axis=1)
    integers = np.clip(np.rint(x * _inverse(top / np.float32(127))[:, None]), -127, 127)
    scale = _least_squares(x, integers)[0].astype("<f2")
    # Once more, for the scale as it is stored.
    integers = np.clip(np.rint(x * _inverse(scale.astype(np.float32))[:, None]), -127, 127)
    return _blocks(scale, integers.astype(np.int8).view(np.uint8))


def quantize_q4_0(x: F32) -> U8:
    """Groups [n, 32] → Q4_0 blocks [n, 18]."""
    furthest = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)[:, 0]
    scale, gain = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for span in _Q4_SPANS:
        # The value furthest from zero becomes -8, which has no opposite.
        integers = _four_bits(x, furthest * np.float32(span / -8))
        candidate, explained = _least_squares(x, integers)
        better = explained > gain
        scale, gain = np.where(better, candidate, scale), np.where(better, explained, gain)
    stored = scale.astype("<f2")
    integers = _four_bits(x, stored.astype(np.float32)) + np.float32(8)
    nibbles = integers.astype(np.uint8)
    return _blocks(stored, nibbles[:, :16] | nibbles[:, 16:] << np.uint8(4))


QUANTIZERS: Mapping[str, Callable[[F32], U8]] = {"Q8_0": quantize_q8_0, "Q4_0": quantize_q4_0}


def _four_bits(x: F32, scale: F32) -> F32:
    integers: F32 = np.clip(np.rint(x * _inverse(scale)[:, None]), -8, 7)
    return integers


def _inverse(scale: F32) -> F32:
    """1 / scale, and 0 where it is too small for that: such groups become zero."""
    inverse: F32 = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=np.abs(scale) > 1e-30)
    return inverse


def _least_squares(x: F32, integers: F32) -> tuple[F32, F32]:
    """The scale d [n] with the least Σ (x - d · q)², and the Σ x² less what is left."""
    products = np.einsum("ij,ij->i", x, integers)
    squares = np.einsum("ij,ij->i", integers, integers)
    scale: F32 = products * _inverse(squares)
    explained: F32 = scale * products
    return scale, explained


def _blocks(scale: npt.NDArray[np.float16], packed: U8) -> U8:
    return np.concatenate((np.ascontiguousarray(scale[:, None]).view(np.uint8), packed), axis=1)
