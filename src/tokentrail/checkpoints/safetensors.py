"""Reader of safetensors files: memory-mapped, and bounds-checked at every step; and of models in several of them.

The format (https://huggingface.co/docs/safetensors): eight bytes with the header's size, the header as a JSON object
`{name: {"dtype": …, "shape": […], "data_offsets": [begin, end]}}` with an optional `__metadata__` of texts, then the
tensors' bytes, offsets counted from the header's end. They lie there without gaps, each byte once, to the end of the
file: as the format asks, and so that a file that was cut short or has grown is noticed.

A file is untrusted input: damage leads to one `ModelFileError`, never to a crash or a read out of bounds.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.errors import DOWNLOAD_AGAIN, file_error, quoted
from tokentrail.checkpoints.json_file import parse_json, read_json
from tokentrail.checkpoints.mapped_file import map_file, release_pages

MAX_HEADER_BYTES = 32 << 20
"""A header with 100,000 tensors takes 12 MB. (The format itself allows 100 MB.)"""
MAX_DIMENSIONS = 16
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")

BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits of an element of each type."""
NUMPY_TYPES: dict[str, str] = {
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
}
"""Those types that NumPy has."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """One tensor of a file."""

    name: str
    dtype: str
    """The format's word: a key of `BITS`."""
    shape: tuple[int, ...]
    path: Path
    """The file that holds it."""
    offset: int
    """Bytes from the start of the file."""
    nbytes: int
    _bytes: npt.NDArray[np.uint8] = field(repr=False)
    _mapping: mmap.mmap = field(repr=False)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes as on disk: a read-only view, shape (nbytes,)."""
        return self._bytes[self.offset : self.offset + self.nbytes]

    def array(self) -> npt.NDArray[Any]:
        """The values, of `shape`: a read-only view. Only for types that NumPy has."""
        return self.data.view(NUMPY_TYPES[self.dtype]).reshape(self.shape)

    def release(self) -> None:
        """See `mapped_file.release_pages`."""
        release_pages(self._mapping, self.offset, self.nbytes)


@dataclass(frozen=True)
class SafetensorsFile:
    """An opened file. The mapping lives as long as an array taken from it."""

    path: Path
    header: bytes
    metadata: dict[str, str]
    tensors: dict[str, StoredTensor]


def read_safetensors(path: Path) -> SafetensorsFile:
    """Open a file. Raises `ModelFileError` when it is missing or damaged."""
    mapping = map_file(path, "a .safetensors file")
    size = len(mapping)
    if size < 8:
        raise file_error(path, f"has only {size} bytes", DOWNLOAD_AGAIN)
    (header_bytes,) = struct.unpack_from("<Q", mapping, 0)
    if header_bytes > MAX_HEADER_BYTES and mapping[:4] in (b"GGUF", b"PK\x03\x04"):
        raise file_error(path, "is not a safetensors file", "Give it the ending of what it is.")
    if header_bytes > min(MAX_HEADER_BYTES, size - 8):
        problem = f"says that its header has {header_bytes} bytes"
        if header_bytes > MAX_HEADER_BYTES:
            raise file_error(path, f"{problem}; at most {MAX_HEADER_BYTES} are possible", DOWNLOAD_AGAIN)
        raise file_error(path, f"{problem}, but the file has {size}", DOWNLOAD_AGAIN)
    header = mapping[8 : 8 + header_bytes]
    entries = parse_json(path, header, " in its header", strict=True)
    return SafetensorsFile(
        path,
        header,
        _texts(path, entries.pop("__metadata__", {})),
        _place(path, mapping, entries, 8 + header_bytes),
    )


def _texts(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise file_error(path, "has a __metadata__ that is not an object of texts", DOWNLOAD_AGAIN)
    return value


def _place(
    path: Path, mapping: mmap.mmap, entries: Mapping[str, Any], data_start: int
) -> dict[str, StoredTensor]:
    """Turn the header into tensors that fill the file's data, each byte once."""
    data = np.frombuffer(mapping, np.uint8)
    available = len(mapping) - data_start
    tensors: dict[str, StoredTensor] = {}
    for name, entry in entries.items():

        def fail(problem: str, name: str = name) -> NoReturn:
            raise file_error(path, f"tensor {quoted(name)} has {problem}", DOWNLOAD_AGAIN)

        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            fail("an entry that is not made of dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in BITS:
            fail(f"the unknown type {quoted(str(dtype))}")
        if not _sizes(shape) or len(shape) > MAX_DIMENSIONS:
            fail(f"the impossible shape {quoted(str(shape))}")
        if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            fail(f"the impossible data_offsets {quoted(str(offsets))}")
        begin, end = offsets
        if end > available:
            fail(f"data up to byte {data_start + end}, but the file has {len(mapping)}")
        bits = BITS[dtype]
        for length in shape:  # numbers stay small: what cannot be in the file is noticed on the way
            bits *= length
            if bits > 8 * available:
                break
        if bits != 8 * (end - begin):
            fail(f"{end - begin} bytes, which is not what {tuple(shape)} in {dtype} takes")
        tensors[name] = StoredTensor(
            name, dtype, tuple(shape), path, data_start + begin, end - begin, data, mapping
        )
    position = data_start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != position:
            what = "overlap those of another tensor" if tensor.offset < position else "follow a gap"
            raise file_error(path, f"tensor {quoted(tensor.name)} has data that {what}", DOWNLOAD_AGAIN)
        position += tensor.nbytes
    if position != len(mapping):
        problem = f"has {len(mapping)} bytes, but its tensors end at byte {position}"
        raise file_error(path, problem, DOWNLOAD_AGAIN)
    return tensors


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def read_folder_tensors(folder: Path) -> tuple[dict[str, StoredTensor], list[SafetensorsFile]]:
    """All tensors of a model in a folder, by name, and the files they are in.

    In this order: the files that `model.safetensors.index.json` names, `model.safetensors`, the parts of one set
    `…-00001-of-0000N.safetensors`, a single file of another name. Raises `ModelFileError`, naming missing parts and
    tensors.
    """
    index = folder / INDEX
    if index.exists():
        return _indexed(folder, index)
    files = [read_safetensors(path) for path in _files(folder)]
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name in tensors:
                problem = f"tensor {quoted(name)} is in {tensors[name].path.name} as well"
                raise file_error(file.path, problem, "Keep one model's files in the folder.")
            tensors[name] = tensor
    return tensors, files


def _indexed(folder: Path, index: Path) -> tuple[dict[str, StoredTensor], list[SafetensorsFile]]:
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise file_error(index, "has no weight_map", DOWNLOAD_AGAIN)
    for name in where.values():
        plain = isinstance(name, str) and name.isprintable() and len(name) < 256
        if not plain or Path(name).name != name or not name.endswith(".safetensors"):
            problem = f"names {quoted(str(name))}, which is not a .safetensors file of this folder"
            raise file_error(index, problem, DOWNLOAD_AGAIN)
    names = sorted(set(where.values()))
    _check_parts(index, [name for name in names if not (folder / name).exists()], len(names))
    files = {name: read_safetensors(folder / name) for name in names}
    tensors = {}
    for tensor, name in where.items():
        if tensor not in files[name].tensors:
            problem = f"tensor {quoted(tensor)} is missing, which {INDEX} says is there"
            raise file_error(folder / name, problem, DOWNLOAD_AGAIN)
        tensors[tensor] = files[name].tensors[tensor]
    return tensors, list(files.values())


def _files(folder: Path) -> list[Path]:
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    # `consolidated`: the same weights once more, under the names of Mistral's own programs.
    paths = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith("consolidated"))
    parts = [match for path in paths if (match := _SHARD.fullmatch(path.name))]
    if parts and len(parts) == len(paths) and len({(m[1], m[3]) for m in parts}) == 1:
        stem, count = parts[0][1], int(parts[0][3])
        there = {int(match[2]) for match in parts}
        expected = [f"{stem}-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1) if i not in there]
        _check_parts(folder, expected, count)
        return paths
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths[:5])
        problem = (
            f"holds {len(paths)} .safetensors files ({names}), but no {INDEX}, which tells what is where"
        )
        raise file_error(folder, problem, "Download the model again.")
    return paths


def _check_parts(path: Path, missing: list[str], count: int) -> None:
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise file_error(
            path, f"{len(missing)} of {count} parts of the model are missing: {shown}", "Download them, too."
        )
