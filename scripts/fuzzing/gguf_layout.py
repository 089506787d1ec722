"""A GGUF file taken apart and put together again, with any lie in it. Reads only files that are sound."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

from tokentrail.checkpoints.ggml_types import GGML_TYPES

SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING, ARRAY = 8, 9


@dataclass
class Entry:
    """A key of the metadata. The value of an array is (type of its elements, list)."""

    key: bytes
    kind: int
    value: Any


@dataclass
class Stored:
    """A tensor. Dimensions as in the file, the fastest first."""

    name: bytes
    dimensions: list[int]
    kind: int
    data: bytes
    offset: int | None = None
    """None: where its data really is."""


@dataclass
class Layout:
    metadata: list[Entry] = field(default_factory=list)
    tensors: list[Stored] = field(default_factory=list)
    version: int = 3
    counts: tuple[int, int] | None = None
    """(tensors, keys) as the header says; None: the truth."""

    @property
    def alignment(self) -> int:
        for entry in self.metadata:
            if entry.key == b"general.alignment" and isinstance(entry.value, int) and 0 < entry.value <= 4096:
                return entry.value
        return 32

    def entry(self, key: str) -> Entry | None:
        return next((entry for entry in self.metadata if entry.key == key.encode()), None)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def string(self) -> bytes:
        size = self.number("<Q")
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.number("<I"), self.number("<Q")
            return inner, [self.value(inner) for _ in range(count)]
        return self.number(SCALARS[kind])


def nbytes(dimensions: list[int], kind: int) -> int:
    """What a tensor takes; that of bytes for a type that there is not."""
    form = GGML_TYPES.get(kind, GGML_TYPES[24])
    elements = 1
    for dimension in dimensions:
        elements *= dimension
    return form.nbytes(elements)


def take_apart(data: bytes) -> Layout:
    reader = _Reader(data)
    reader.at = 4
    layout = Layout(version=reader.number("<I"))
    tensors, keys = reader.number("<Q"), reader.number("<Q")
    for _ in range(keys):
        key, kind = reader.string(), reader.number("<I")
        layout.metadata.append(Entry(key, kind, reader.value(kind)))
    table = []
    for _ in range(tensors):
        name = reader.string()
        dimensions = [reader.number("<Q") for _ in range(reader.number("<I"))]
        table.append((name, dimensions, reader.number("<I"), reader.number("<Q")))
    start = -(-reader.at // layout.alignment) * layout.alignment
    for name, dimensions, kind, offset in table:
        size = nbytes(dimensions, kind)
        layout.tensors.append(Stored(name, dimensions, kind, data[start + offset : start + offset + size]))
    return layout


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(kind: int, value: Any) -> bytes:
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner & 0xFFFFFFFF, len(items)) + b"".join(
            _value(inner, item) for item in items
        )
    if kind == STRING or isinstance(value, bytes):
        return _string(value if isinstance(value, bytes) else str(value).encode())
    layout = SCALARS.get(kind, "<I")
    if layout[1] in "fd":
        try:
            return struct.pack(layout, float(value))
        except (OverflowError, ValueError):
            return struct.pack(layout, float("inf"))
    number = int(value) if math.isfinite(value) else 0
    return (number % (1 << 64)).to_bytes(8, "little")[: struct.calcsize(layout)]


def put_together(layout: Layout) -> bytes:
    tensors, keys = layout.counts or (len(layout.tensors), len(layout.metadata))
    head = [b"GGUF", struct.pack("<IQQ", layout.version, tensors, keys)]
    for entry in layout.metadata:
        head += [_string(entry.key), struct.pack("<I", entry.kind), _value(entry.kind, entry.value)]
    alignment, at = layout.alignment, 0
    data = []
    for tensor in layout.tensors:
        offset = at if tensor.offset is None else tensor.offset
        sizes = [dimension % (1 << 64) for dimension in tensor.dimensions]
        head += [_string(tensor.name), struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)]
        head += [struct.pack("<IQ", tensor.kind, offset % (1 << 64))]
        padding = -len(tensor.data) % alignment
        data += [tensor.data, bytes(padding)]
        at += len(tensor.data) + padding
    front = b"".join(head)
    return front + bytes(-len(front) % alignment) + b"".join(data)
