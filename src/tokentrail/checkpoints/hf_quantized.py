"""Where the readers of quantized Hugging Face checkpoints plug in, by `quantization_config.quant_method`.

A reader turns groups of stored tensors (`….q_proj.qweight`, `.qzeros`, `.scales`) into the one that each was before
(`….q_proj.weight`), in a format that `dequantize` knows; so names and fused tensors are then the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Protocol

from tokentrail.checkpoints.awq import read_awq
from tokentrail.checkpoints.compressed_tensors import read_compressed_tensors
from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.fp8 import read_fp8
from tokentrail.checkpoints.gptq import read_gptq
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Tensor
from tokentrail.checkpoints.mxfp4 import read_mxfp4
from tokentrail.checkpoints.safetensors import StoredTensor

PLAIN_FORMATS = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
"""safetensors' types that are used as they are."""


class QuantReader(Protocol):
    def __call__(
        self, stored: Mapping[str, StoredTensor], settings: Metadata
    ) -> tuple[dict[str, Tensor], Set[str]]:
        """(tensors by the names that they had unquantized, names of all the stored tensors they are made of).

        What is not named stays as it is. `settings` is the `quantization_config`. Bytes are transcoded when they are
        asked for (`Deferred`). Raises `ModelFileError` for groups and settings that do not fit together.
        """
        ...


READERS: dict[str, QuantReader] = {
    "awq": read_awq,
    "gptq": read_gptq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "fbgemm_fp8": read_fp8,
    "mxfp4": read_mxfp4,
}
"""By `quant_method`."""


def read_tensors(
    path: Path, stored: Mapping[str, StoredTensor], settings: Metadata | None
) -> dict[str, Tensor]:
    """All tensors, by the names that they have in an unquantized checkpoint.

    Raises `ModelFileError` for a quantization that is not known, and types that need one.
    """
    tensors: dict[str, Tensor] = {}
    used: Set[str] = frozenset()
    if settings is not None:
        method = settings.text("quant_method")
        reader = READERS.get(method)
        if reader is None:
            known = ", ".join(sorted(READERS))
            problem = f"is quantized by {quoted(method)}, which is not supported (supported: {known})"
            raise file_error(path, problem, "Use the original model, or a GGUF file of it.")
        tensors, used = reader(stored, settings)
    for name, tensor in stored.items():
        if name not in used and name not in tensors:
            tensors[name] = plain(tensor)
    return tensors


def plain(tensor: StoredTensor) -> Tensor:
    """A tensor as it is stored."""
    # Types that no weights are stored in (a counter, say) matter only if somebody asks for the tensor.
    format = PLAIN_FORMATS.get(tensor.dtype, tensor.dtype)
    return Tensor(tensor.name, tensor.shape, format, tensor.data, tensor.release)
