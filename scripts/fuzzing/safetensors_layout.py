"""A safetensors file taken apart and put together again, with any lie in it. Reads only files that are sound."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Stored:
    name: str
    dtype: str
    shape: list[int]
    data: bytes
    offsets: list[int] | None = None
    """None: where its data really is."""


@dataclass
class Layout:
    tensors: list[Stored] = field(default_factory=list)
    metadata: Any = None


def take_apart(data: bytes) -> Layout:
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    layout = Layout(metadata=header.pop("__metadata__", None))
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        layout.tensors.append(Stored(name, entry["dtype"], list(entry["shape"]), data[begin:end]))
    return layout


def header_of(layout: Layout) -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {} if layout.metadata is None else {"__metadata__": layout.metadata}
    at, data = 0, []
    for tensor in layout.tensors:
        end = at + len(tensor.data)
        offsets = [at, end] if tensor.offsets is None else tensor.offsets
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
        data.append(tensor.data)
        at = end
    return header, b"".join(data)


def put_together(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data
