"""Weights in 8-bit floats (E4M3: Micikevicius et al. 2022, arXiv:2209.05433), turned into bfloat16 at load.

A layer [n, k] is stored as `weight`, float8_e4m3fn [n, k], and scales that multiply it: one for all, one a row [n, 1],
or one a block [ceil(n / 128), ceil(k / 128)] (DeepSeek-V3, Qwen3-FP8). Scales of activations are not needed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Tensor
from tokentrail.checkpoints.quantized_layers import F32, FLOATS, U8, StoredLayer, fail, floats, read_layers
from tokentrail.checkpoints.safetensors import StoredTensor

SCALE_WORDS = ("weight_scale_inv", "weight_scale")
"""Two names for the same thing: both multiply."""
UNUSED_WORDS = ("input_scale", "output_scale", "activation_scale", "k_scale", "v_scale", "q_scale")
"""Scales of activations and of keys and values."""
_ROWS = 1 << 18
"""Values turned at a time."""


def read_fp8(stored: Mapping[str, StoredTensor], settings: Metadata) -> tuple[dict[str, Tensor], Set[str]]:
    """See `hf_quantized.QuantReader`. For the methods `fp8` and `fbgemm_fp8`."""
    kind = settings.text("fmt", "e4m3")
    if kind.lower() not in ("e4m3", "float8_e4m3fn"):
        problem = f"has 8-bit floats of the kind {quoted(kind)}"
        raise file_error(settings.path, problem, "Models with fmt e4m3 work, or the unquantized model.")
    block = block_shape(settings, "weight_block_size")

    def read(layer: StoredLayer) -> Tensor | None:
        if layer.parts.keys() == {"weight"} and not layer.parts["weight"].dtype.startswith("F8"):
            return None
        return float8_tensor(layer, block)

    tensors, used = read_layers(stored, ("weight", *SCALE_WORDS), read)
    return tensors, used | unused(stored)


def unused(stored: Mapping[str, StoredTensor]) -> set[str]:
    """Names of tensors that nothing here needs."""
    return {name for name in stored if name.rpartition(".")[2] in UNUSED_WORDS}


def block_shape(settings: Metadata, key: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale, as [rows, columns]; None where the key is missing."""
    sizes = settings.integers(key, low=1, high=1 << 20)
    if not sizes:
        return None
    if len(sizes) != 2:
        settings.fail(key, "two numbers, rows and columns")
    return sizes[0], sizes[1]


def float8_tensor(layer: StoredLayer, block: tuple[int, int] | None) -> Tensor:
    """The layer's weight as BF16."""
    weight = layer.part("weight", "F8_E4M3")
    n, k = weight.shape
    word = next((word for word in SCALE_WORDS if word in layer.parts), SCALE_WORDS[1])
    scales = layer.parts.get(word) or layer.part(word, *FLOATS)
    layer.part(word, *FLOATS, "F8_E8M0", shape=scales.shape)
    shape = scales.shape
    if scales.shape in ((), (1,), (1, 1)):
        rows, columns, shape = n, k, (1, 1)
    elif scales.shape in ((n, 1), (n,)):
        rows, columns, shape = 1, k, (n, 1)
    elif block is not None and scales.shape == (-(-n // block[0]), -(-k // block[1])):
        rows, columns = block
    else:
        blocks = "" if block is None else f", or one a block of {block[0]} × {block[1]}"
        fail(
            scales,
            f"has the shape {scales.shape}; one scale for all, one for each of {n} rows{blocks} is needed",
        )
    return layer.tensor(
        (n, k), "BF16", lambda: _bfloat16(weight, floats(scales).reshape(shape), rows, columns)
    )


def _bfloat16(weight: StoredTensor, scales: F32, rows: int, columns: int) -> U8:
    """Bytes of weight · scale in bfloat16, where `rows` × `columns` values share a scale."""
    n, k = weight.shape
    codes = weight.data.reshape(n, k)
    result = np.empty((n, k), np.uint16)
    step = max(1, _ROWS // k)
    for start in range(0, n, step):
        part = codes[start : start + step]
        of_rows = scales[np.arange(start, start + len(part)) // rows]
        factors = of_rows if of_rows.shape[1] == 1 else np.repeat(of_rows, columns, axis=1)[:, :k]
        with np.errstate(over="ignore"):  # by damaged scales: infinities are found when the model runs
            values = _e4m3()[part] * factors
        result[start : start + step] = to_bfloat16(values)
    return result.view(np.uint8).reshape(-1)


def to_bfloat16(values: F32) -> npt.NDArray[np.uint16]:
    """Finite values, rounded to nearest, ties to even: uint16, the upper half of float32."""
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint16] = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1) >> 16).astype(np.uint16)
    return rounded


@lru_cache(maxsize=1)
def _e4m3() -> F32:
    """Values of the 256 bytes: a sign, four bits of exponent (bias 7), three of mantissa. No infinities.

    127 and 255 are not numbers; quantizers do not write them, and where they stand all the same they are zero.
    """
    codes = np.arange(256)
    exponents, mantissas = codes >> 3 & 15, codes & 7
    values = np.where(exponents == 0, mantissas / 8 * 2.0**-6, (1 + mantissas / 8) * 2.0 ** (exponents - 7))
    values[127::128] = 0
    signed: F32 = np.where(codes < 128, values, -values).astype(np.float32)
    return signed
