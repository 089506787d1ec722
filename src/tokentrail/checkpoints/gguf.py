"""Reader of GGUF files, versions 2 and 3, little endian: memory-mapped, and bounds-checked at every step.

A GGUF file is untrusted input. Every count is compared with the bytes that are there before anything is
allocated or read for it, so damage leads to one `ModelFileError` and never to a crash, a huge allocation or
a read out of bounds. Opening reads the metadata and the tensor table; tensor bytes are touched on use only.
(What no reader of a mapped file can check: that nobody cuts the file short while it is in use.)

Layout (docs/gguf.md in the ggml repository): magic, version, tensor count, metadata count, the metadata as
key, type, value; then the tensor table as name, dimensions (fastest first), type, offset; then, aligned to
`general.alignment`, the tensors' bytes, each offset counted from the start of that section.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.errors import CONVERT_AGAIN, DOWNLOAD_AGAIN, file_error, quoted
from tokentrail.checkpoints.ggml_types import GGML_TYPES, REMOVED_TYPES, GGMLType
from tokentrail.checkpoints.mapped_file import map_file, release_pages

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_HEADER_BYTES = 256 << 20
"""Metadata and tensor table together. The largest real ones (a million tokens) take under 64 MiB."""
MAX_OBJECTS = 1 << 23
"""Strings, nested arrays, keys and tensors in a file, and numbers in an array: bounds what it can ask for."""
MAX_KEY_BYTES = 65535
"""The specification's limit."""
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4

_STRING = 8
_ARRAY = 9
_BOOL = 7
_SCALARS: dict[int, tuple[struct.Struct, npt.DTypeLike]] = {
    0: (struct.Struct("<B"), "<u1"),
    1: (struct.Struct("<b"), "<i1"),
    2: (struct.Struct("<H"), "<u2"),
    3: (struct.Struct("<h"), "<i2"),
    4: (struct.Struct("<I"), "<u4"),
    5: (struct.Struct("<i"), "<i4"),
    6: (struct.Struct("<f"), "<f4"),
    _BOOL: (struct.Struct("<B"), "<u1"),
    10: (struct.Struct("<Q"), "<u8"),
    11: (struct.Struct("<q"), "<i8"),
    12: (struct.Struct("<d"), "<f8"),
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class GGUFTensor:
    """One row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Row-major: the last dimension is the fastest, so a weight matrix is (out_features, in_features)."""
    type: GGMLType
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """An opened file. The mapping lives as long as this object or any array taken from it."""

    path: Path
    version: int
    alignment: int
    metadata: dict[str, Any]
    """Values as int, float, bool, str; arrays as list[str], a NumPy array of numbers, or a list of arrays."""
    tensors: dict[str, GGUFTensor]
    fingerprint: str
    """Hex digest of the metadata, the tensor table and a sample of every tensor's bytes."""
    _bytes: npt.NDArray[np.uint8]
    _mapping: mmap.mmap

    def data(self, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as on disk: a read-only view, shape (nbytes,)."""
        return self._bytes[tensor.offset : tensor.offset + tensor.nbytes]

    def release(self, tensor: GGUFTensor) -> None:
        """See `mapped_file.release_pages`."""
        release_pages(self._mapping, tensor.offset, tensor.nbytes)


def read_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file. Raises `ModelFileError` when it is missing, damaged or of an unknown version."""
    path = Path(path)
    mapping = map_file(path, "a .gguf file")
    try:
        return _parse(path, mapping)
    except BaseException:
        with contextlib.suppress(BufferError):  # only when interrupted while an array still looks at it
            mapping.close()
        raise


class _Cursor:
    """A position in the header; every step forward is checked against the bytes that are there."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.mapping = mapping
        self.position = 0
        self.size = len(mapping)
        self.limit = min(self.size, MAX_HEADER_BYTES)
        self.objects = MAX_OBJECTS
        self.where = "the header"

    def fail(self, problem: str, remedy: str = DOWNLOAD_AGAIN) -> NoReturn:
        raise file_error(self.path, f"{problem}, in {self.where}", remedy)

    def need(self, nbytes: int) -> int:
        """Reserve `nbytes` and return where they start."""
        start = self.position
        if nbytes > self.limit - start:
            if self.limit < self.size:
                self.fail(f"metadata larger than {MAX_HEADER_BYTES >> 20} MiB")
            self.fail(f"{nbytes} bytes expected at offset {start}, but the file has {self.size}")
        self.position = start + nbytes
        return start

    def count_objects(self, count: int, bytes_each: int) -> None:
        """Check that `count` items of at least `bytes_each` bytes can be there, before any is made."""
        if count * bytes_each > self.limit - self.position:
            self.fail(f"a count of {count} items does not fit into the file of {self.size} bytes")
        self.objects -= count
        if self.objects < 0:
            self.fail(f"more than {MAX_OBJECTS} items")

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.mapping, self.need(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self.mapping, self.need(8))[0]
        return value

    def string(self, limit: int = MAX_HEADER_BYTES) -> str:
        length = self.u64()
        if length > limit:
            self.fail(f"a string of {length} bytes")
        start = self.need(length)
        try:
            return str(self.mapping[start : self.position], "utf-8")
        except UnicodeDecodeError:
            self.fail("a string that is not valid UTF-8")

    def strings(self, count: int) -> list[str]:
        """`count` strings. The hot loop of opening a file (vocabulary and merges), hence written flat."""
        self.count_objects(count, 8)
        mapping, position, limit = self.mapping, self.position, self.limit
        unpack, last = _U64.unpack_from, self.limit - 8
        result: list[str] = []
        append = result.append
        try:
            for _ in range(count):
                if position > last:
                    self.fail("strings that run past the end of the file")
                start = position + 8
                position = start + unpack(mapping, position)[0]
                if position > limit:
                    self.fail("a string that runs past the end of the file")
                append(str(mapping[start:position], "utf-8"))
        except UnicodeDecodeError:
            self.fail("a string that is not valid UTF-8")
        self.position = position
        return result

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(depth + 1)
        scalar = _SCALARS.get(kind)
        if scalar is None:
            self.fail(f"unknown value type {kind}")
        layout = scalar[0]
        value = layout.unpack_from(self.mapping, self.need(layout.size))[0]
        if kind == _BOOL:
            if value > 1:
                self.fail(f"{value} as a truth value (0 or 1)")
            return bool(value)
        return value

    def array(self, depth: int) -> Any:
        if depth > MAX_ARRAY_DEPTH:
            self.fail(f"arrays nested more than {MAX_ARRAY_DEPTH} deep")
        kind = self.u32()
        count = self.u64()
        if kind == _STRING:
            return self.strings(count)
        if kind == _ARRAY:
            self.count_objects(count, 12)
            return [self.array(depth + 1) for _ in range(count)]
        scalar = _SCALARS.get(kind)
        if scalar is None:
            self.fail(f"unknown value type {kind}")
        layout, dtype = scalar
        if count > MAX_OBJECTS:
            self.fail(f"an array of {count} numbers (at most {MAX_OBJECTS} are possible)")
        start = self.need(count * layout.size)
        values = np.frombuffer(self.mapping[start : self.position], dtype)
        if kind == _BOOL:
            if count and int(values.max()) > 1:
                self.fail("a truth value other than 0 or 1")
            return values.view(np.bool_)
        return values


def _parse(path: Path, mapping: mmap.mmap) -> GGUFFile:
    cursor = _Cursor(path, mapping)
    magic = mapping[:4]
    if magic != MAGIC:
        if len(mapping) < 4:
            raise file_error(path, f"has only {len(mapping)} bytes", DOWNLOAD_AGAIN)
        raise file_error(
            path,
            f"is not a GGUF file (it starts with {magic!r}, not b'GGUF')",
            "Give the path of a .gguf file.",
        )
    cursor.need(4)
    version = cursor.u32()
    if version not in (2, 3):
        if version != 0 and version & 0xFFFF == 0:
            raise file_error(
                path, "is a big-endian GGUF file", "Convert it with gguf-py's gguf_convert_endian.py."
            )
        raise file_error(path, f"has GGUF version {version}; versions 2 and 3 are supported", CONVERT_AGAIN)
    tensor_count = cursor.u64()
    metadata_count = cursor.u64()

    metadata: dict[str, Any] = {}
    cursor.count_objects(metadata_count, 8 + 4 + 1)
    for index in range(metadata_count):
        cursor.where = f"metadata entry {index + 1} of {metadata_count}"
        key = cursor.string(MAX_KEY_BYTES)
        cursor.where = f"metadata key {quoted(key)}"
        if key in metadata:
            cursor.fail("a duplicate")
        metadata[key] = cursor.value(cursor.u32())

    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        problem = (
            f"general.alignment is {alignment!r:.40}; a power of two from 8 to {MAX_ALIGNMENT} is needed"
        )
        raise file_error(path, problem, DOWNLOAD_AGAIN)

    cursor.where = "the tensor table"
    cursor.count_objects(tensor_count, 8 + 4 + 8 + 4 + 8)
    entries: list[tuple[str, tuple[int, ...], GGMLType, int]] = []
    for index in range(tensor_count):
        cursor.where = f"tensor {index + 1} of {tensor_count}"
        entries.append(_tensor_entry(cursor))

    table_end = cursor.position
    data_start = -(-table_end // alignment) * alignment
    tensors = _place(cursor, entries, data_start, alignment)
    data = np.frombuffer(mapping, np.uint8)
    return GGUFFile(
        path=path,
        version=version,
        alignment=alignment,
        metadata=metadata,
        tensors=tensors,
        fingerprint=_fingerprint(data, table_end, tensors),
        _bytes=data,
        _mapping=mapping,
    )


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLType, int]:
    name = cursor.string(MAX_KEY_BYTES)
    cursor.where = f"tensor {quoted(name)}"
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        cursor.fail(f"{num_dimensions} dimensions (1 to {MAX_DIMENSIONS} are possible)")
    dimensions = tuple(cursor.u64() for _ in range(num_dimensions))
    if 0 in dimensions:
        cursor.fail(f"an empty dimension in {dimensions}")
    type_id = cursor.u32()
    ggml_type = GGML_TYPES.get(type_id)
    if ggml_type is None:
        if type_id in REMOVED_TYPES:
            problem = f"the type {REMOVED_TYPES[type_id]}, which llama.cpp has withdrawn"
            cursor.fail(problem, CONVERT_AGAIN)
        cursor.fail(
            f"unknown type {type_id}", "The file is damaged, or too new for this version of Tokentrail."
        )
    if dimensions[0] % ggml_type.block_size:
        problem = (
            f"rows of {dimensions[0]} elements, not a multiple of {ggml_type.name}'s {ggml_type.block_size}"
        )
        cursor.fail(problem)
    return name, dimensions[::-1], ggml_type, cursor.u64()


def _place(
    cursor: _Cursor,
    entries: list[tuple[str, tuple[int, ...], GGMLType, int]],
    data_start: int,
    alignment: int,
) -> dict[str, GGUFTensor]:
    """Turn the table into tensors whose bytes are all inside the file, aligned, and apart from each other."""
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, ggml_type, relative in entries:
        cursor.where = f"tensor {quoted(name)}"
        if name in tensors:
            cursor.fail("a duplicate name")
        if relative % alignment:
            cursor.fail(f"an offset of {relative}, not a multiple of the alignment {alignment}")
        elements = 1
        for dimension in shape:
            elements *= dimension
        nbytes = ggml_type.nbytes(elements)
        offset = data_start + relative
        if offset + nbytes > cursor.size:
            cursor.fail(f"data up to byte {offset + nbytes}, but the file has {cursor.size}")
        tensors[name] = GGUFTensor(name, shape, ggml_type, offset, nbytes)
    end, previous = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            cursor.where = f"tensor {quoted(tensor.name)}"
            cursor.fail(f"data that overlap those of tensor {quoted(previous)}")
        end, previous = tensor.offset + tensor.nbytes, tensor.name
    return tensors


def _fingerprint(data: npt.NDArray[np.uint8], table_end: int, tensors: dict[str, GGUFTensor]) -> str:
    """Digest of the header and of 64 bytes from the middle of every tensor.

    The header alone would be equal for two fine-tunes of one model; hashing all bytes would read the whole
    file before the first token. Fine-tunes change practically every tensor, so a sample tells them apart.
    """
    digest = hashlib.blake2b(data[:table_end].data, digest_size=16)
    for tensor in tensors.values():
        middle = tensor.offset + tensor.nbytes // 2
        digest.update(data[middle : min(middle + 64, tensor.offset + tensor.nbytes)].data)
    return digest.hexdigest()
