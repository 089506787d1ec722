"""gpt-oss's experts in MXFP4 (OCP Microscaling Formats 1.0), as Hugging Face checkpoints store them → GGUF's MXFP4.

`….experts.gate_up_proj_blocks` [experts, rows, columns / 32, 16] holds pairs of values, the first in the lower half of
a byte; `…_scales` [experts, rows, columns / 32] their groups' exponents (E8M0). GGUF puts the exponent before its
group, with the first sixteen values in the lower halves. Rows of gate and up stand in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.errors import file_error, quoted
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import Deferred, Tensor
from tokentrail.checkpoints.safetensors import StoredTensor

U8 = npt.NDArray[np.uint8]

GROUP = 32
PARTS = {"gate_up_proj": (("gate_proj", 0, 2), ("up_proj", 1, 2)), "down_proj": (("down_proj", 0, 1),)}
"""Name of a stack → names of what it holds, the first row of each, and from a row to its next."""
REMEDY = "Download the model again, or use a GGUF file of it."


def read_mxfp4(stored: Mapping[str, StoredTensor], settings: Metadata) -> tuple[dict[str, Tensor], Set[str]]:
    """A `QuantReader`: each expert's matrices by themselves (`….experts.3.gate_proj.weight`), in the format MXFP4."""
    tensors: dict[str, Tensor] = {}
    used: set[str] = set()
    for name, blocks in stored.items():
        stem = name.removesuffix("_blocks")
        prefix, _, stack = stem.rpartition(".")
        if stem == name or stack not in PARTS:
            continue
        scales = stored.get(f"{stem}_scales")
        if scales is None:
            raise file_error(blocks.path, f"tensor {quoted(name)} has no scales beside it", REMEDY)
        if (
            blocks.dtype != "U8"
            or scales.dtype != "U8"
            or len(blocks.shape) != 4
            or blocks.shape[3] != GROUP // 2
            or scales.shape != blocks.shape[:3]
            or blocks.shape[1] % PARTS[stack][0][2]
        ):
            problem = (
                f"tensor {quoted(name)} of shape {blocks.shape} and its scales {scales.shape} are not MXFP4"
            )
            raise file_error(blocks.path, problem, REMEDY)
        used |= {name, scales.name}
        experts, rows, groups, _ = blocks.shape
        for expert in range(experts):
            for part, start, step in PARTS[stack]:
                count = rows // step
                own = f"{prefix}.{expert}.{part}.weight"
                make = partial(_transcode, blocks, scales, expert, start, step)
                shape = (count, groups * GROUP)
                tensors[own] = Tensor(own, shape, "MXFP4", Deferred(count * groups * 17, make))
    return tensors, used


def _transcode(blocks: StoredTensor, scales: StoredTensor, expert: int, start: int, step: int) -> U8:
    """Rows start, start + step, … of one expert as GGUF's blocks, flat."""
    pairs: U8 = blocks.data.reshape(blocks.shape)[expert, start::step]
    out = np.empty((*pairs.shape[:2], 17), np.uint8)
    out[..., 0] = scales.data.reshape(scales.shape)[expert, start::step]
    values = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:2], GROUP)
    out[..., 1:] = values[..., :16] | values[..., 16:] << 4
    return out.reshape(-1)
