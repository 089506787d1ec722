"""Small .safetensors files, read and written whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TYPES = {"float32": "F32", "float16": "F16", "uint8": "U8"}

Arrays = dict[str, npt.NDArray[Any]]


def write_tensors(folder: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> Path:
    """Write model.safetensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data, at = [], 0
    for name in sorted(tensors):
        values = np.ascontiguousarray(tensors[name])
        data.append(values.tobytes())
        end = at + values.nbytes
        header[name] = {
            "dtype": TYPES[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": [at, end],
        }
        at = end
    folder.mkdir(parents=True, exist_ok=True)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"".join(data))
    return folder


def read_tensors(folder: Path) -> Arrays:
    """All tensors of model.safetensors, copied."""
    stored = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(stored[:8], "little")
    types = {word: name for name, word in TYPES.items()}
    tensors: Arrays = {}
    for name, entry in json.loads(stored[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            values = np.frombuffer(stored[start + first : start + last], types[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"])
    return tensors
