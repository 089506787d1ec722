"""The GGUF reader against the `gguf` package, and against every kind of damage."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_files import write_model
from tokentrail.checkpoints import GGUFFile, open_checkpoint, read_gguf
from tokentrail.checkpoints.ggml_types import GGML_TYPES
from tokentrail.protocol import ModelFileError

TOKENS = ["<|endoftext|>", "a", "b", "ab"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("gguf") / "small.gguf",
        tokens=TOKENS,
        types=[3, 1, 1, 1],
        metadata={
            "tokenizer.ggml.eos_token_id": 0,
            "some.floats": [0.5, 1.5],
            "some.bools": [True, False],
            "some.text": "a line\nand another",
            "llama.attention.sliding_window": 64,
        },
    )


@pytest.fixture(scope="module")
def small_bytes(small: Path) -> bytes:
    return small.read_bytes()


def error_of(path: Path, content: bytes, read: Callable[[Path], object] = read_gguf) -> str:
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


# --- agreement with the gguf package -----------------------------------------------------------------


def test_type_table_is_that_of_the_gguf_package() -> None:
    for kind, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        ours = GGML_TYPES[kind.value]
        assert (ours.name, ours.block_size, ours.block_bytes) == (kind.name, block_size, block_bytes)
    assert len(GGML_TYPES) >= len(gguf.GGML_QUANT_SIZES)


def assert_equal(ours: GGUFFile, reference: gguf.GGUFReader) -> None:
    keys = {key for key in reference.fields if not key.startswith("GGUF.")}
    assert set(ours.metadata) == keys
    for key in keys:
        field = reference.fields[key]
        if gguf.GGUFValueType.STRING in field.types[1:]:
            # `contents()` of the reference takes seconds on a vocabulary.
            expected = [bytes(field.parts[index]).decode() for index in field.data]
        else:
            expected = field.contents()
        value = ours.metadata[key]
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == expected
    assert list(ours.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert (mine.type.name, mine.offset, mine.nbytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
        assert np.array_equal(ours.data(mine), tensor.data.reshape(-1).view(np.uint8))


def test_small_file_equals_reference(small: Path) -> None:
    assert_equal(read_gguf(small), gguf.GGUFReader(small))


def test_demo_file_equals_reference(demo_path: Path, demo_reference: gguf.GGUFReader) -> None:
    assert_equal(read_gguf(demo_path), demo_reference)


def test_demo_file_opens_quickly(demo_path: Path) -> None:
    times = []
    for _ in range(5):
        start = time.process_time()  # not the time that other programs take
        open_checkpoint(demo_path)
        times.append(time.process_time() - start)
    assert min(times) < 0.15


def test_nested_arrays_and_all_scalar_types(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "values.gguf", "llama")
    kinds = gguf.GGUFValueType
    values = {
        kinds.UINT8: 255,
        kinds.INT8: -128,
        kinds.UINT16: 65535,
        kinds.INT16: -32768,
        kinds.UINT32: 2**32 - 1,
        kinds.INT32: -(2**31),
        kinds.FLOAT32: 0.5,
        kinds.BOOL: True,
        kinds.STRING: "é…",
        kinds.UINT64: 2**64 - 1,
        kinds.INT64: -(2**63),
        kinds.FLOAT64: 1e300,
    }
    for kind, value in values.items():
        writer.add_key_value(f"x.{kind.name}", value, kind)
    writer.add_array("x.nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_gguf(tmp_path / "values.gguf").metadata
    for kind, value in values.items():
        assert metadata[f"x.{kind.name}"] == value
        assert type(metadata[f"x.{kind.name}"]) is type(value)
    assert [row.tolist() for row in metadata["x.nested"]] == [[1, 2], [3]]


def test_version_2_is_read(small_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "v2.gguf"
    path.write_bytes(small_bytes[:4] + struct.pack("<I", 2) + small_bytes[8:])
    assert read_gguf(path).version == 2


def test_alignment_of_the_file_is_kept(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(256)
    array = np.arange(100, dtype=np.float32)
    writer.add_tensor("one", array)
    writer.add_tensor("two", array + 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "a.gguf")
    assert file.alignment == 256
    for name, shift in (("one", 0), ("two", 1)):
        tensor = file.tensors[name]
        assert tensor.offset % 256 == 0
        assert np.array_equal(file.data(tensor).view(np.float32), array + shift)


def test_data_are_views_that_cannot_be_written(small: Path) -> None:
    file = read_gguf(small)
    data = file.data(next(iter(file.tensors.values())))
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
def test_released_tensors_take_no_memory_and_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    arrays = {f"blk.{i}.ffn_up.weight": np.full((1000, 1001), i, np.float32) for i in range(3)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    def resident() -> int:
        """Bytes of the file's pages that this process holds."""
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        for line in lines:
            if line.endswith(str(path)):
                return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))
        return 0

    file = read_gguf(path)
    first = file.tensors["blk.0.ffn_up.weight"]
    for tensor in file.tensors.values():
        file.data(tensor).sum()
    whole = resident()
    assert whole > 11_000_000
    file.release(first)
    assert resident() <= whole - first.nbytes + 2 * mmap.PAGESIZE
    for tensor in file.tensors.values():
        file.release(tensor)
    assert resident() < 1 << 20
    for name, tensor in file.tensors.items():
        np.testing.assert_array_equal(file.data(tensor).view(np.float32), arrays[name].ravel())


def test_fingerprint_tells_weights_apart(small: Path, small_bytes: bytes, tmp_path: Path) -> None:
    file = read_gguf(small)
    assert read_gguf(small).fingerprint == file.fingerprint
    tensor = file.tensors["blk.0.attn_q.weight"]
    changed = bytearray(small_bytes)
    changed[tensor.offset + tensor.nbytes // 2] ^= 1
    (tmp_path / "other.gguf").write_bytes(changed)
    assert read_gguf(tmp_path / "other.gguf").fingerprint != file.fingerprint


def test_no_descriptor_is_left_open(small: Path, tmp_path: Path) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    before = descriptors()
    for _ in range(20):
        read_gguf(small)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    for _ in range(20):
        with pytest.raises(ModelFileError):
            read_gguf(broken)
    assert descriptors() <= before


# --- damage ------------------------------------------------------------------------------------------


def test_files_that_are_none(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(ModelFileError) as caught:
            read_gguf(path)
        assert str(path) in str(caught.value)
        return str(caught.value)

    assert "No such file" in message(tmp_path / "missing.gguf")
    assert "not a regular file" in message(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in message(tmp_path / "fifo")
    with pytest.raises(ModelFileError, match="null byte"):
        read_gguf("a\0b")
    assert "is empty" in error_of(tmp_path / "empty.gguf", b"")
    assert "only 3 bytes" in error_of(tmp_path / "short.gguf", b"GGU")
    assert "not a GGUF file" in error_of(tmp_path / "zip.gguf", b"PK\x03\x04" + bytes(100))
    assert "version 1;" in error_of(tmp_path / "v1.gguf", b"GGUF" + struct.pack("<I", 1) + bytes(100))
    assert "version 4;" in error_of(tmp_path / "v4.gguf", b"GGUF" + struct.pack("<I", 4) + bytes(100))
    assert "big-endian" in error_of(tmp_path / "be.gguf", b"GGUF" + struct.pack(">I", 3) + bytes(100))


def key(name: str) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode()


def header(tensors: int = 0, metadata: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, metadata)


def array(kind: int, count: int) -> bytes:
    return struct.pack("<IIQ", 9, kind, count)


def tensor(name: str, dimensions: list[int], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return key(name) + shape + struct.pack("<IQ", kind, offset)


ROOM = bytes(4096)

DAMAGE = {
    "count of metadata": (header(0, 2**63) + ROOM, "count of"),
    "count of tensors": (header(2**64 - 1, 0) + ROOM, "count of"),
    "key longer than the file": (header(0, 1) + struct.pack("<Q", 2**62) + ROOM, "string of"),
    "key longer than allowed": (header(0, 1) + struct.pack("<Q", 65536) + bytes(70000), "string of 65536"),
    "value type": (header(0, 1) + key("k") + struct.pack("<I", 13) + ROOM, "unknown value type 13"),
    "array type": (header(0, 1) + key("k") + array(200, 1) + ROOM, "unknown value type 200"),
    "array count": (header(0, 1) + key("k") + array(4, 2000) + ROOM, "bytes expected"),
    "array longer than possible": (header(0, 1) + key("k") + array(0, 2**23 + 1) + ROOM, "array of 8388609"),
    "array count that overflows": (header(0, 1) + key("k") + array(10, 2**63) + ROOM, "numbers"),
    "string count": (header(0, 1) + key("k") + array(8, 2**60) + ROOM, "count of"),
    "strings past the end": (
        header(0, 1)
        + key("k")
        + array(8, 2)
        + struct.pack("<Q", 3)
        + b"abc"
        + struct.pack("<Q", 99)
        + ROOM[:20],
        "runs past the end",
    ),
    "nested array count": (header(0, 1) + key("k") + array(9, 2**60) + ROOM, "count of"),
    "deep arrays": (
        header(0, 1) + key("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100 + ROOM,
        "nested more than",
    ),
    "bool": (header(0, 1) + key("k") + struct.pack("<IB", 7, 2) + ROOM, "truth value"),
    "bools": (header(0, 1) + key("k") + array(7, 3) + b"\0\1\2" + ROOM, "truth value"),
    "text": (header(0, 1) + key("k") + struct.pack("<IQ", 8, 2) + b"\xff\xfe" + ROOM, "not valid UTF-8"),
    "texts": (
        header(0, 1) + key("k") + array(8, 1) + struct.pack("<Q", 1) + b"\xff" + ROOM,
        "not valid UTF-8",
    ),
    "key text": (header(0, 1) + struct.pack("<Q", 1) + b"\xff" + ROOM, "not valid UTF-8"),
    "duplicate key": (header(0, 2) + (key("k") + struct.pack("<IB", 0, 1)) * 2 + ROOM, "'k'"),
    "alignment": (
        header(0, 1) + key("general.alignment") + struct.pack("<II", 4, 24) + ROOM,
        "24; a power of two",
    ),
    "alignment 0": (
        header(0, 1) + key("general.alignment") + struct.pack("<II", 4, 0) + ROOM,
        "alignment is 0",
    ),
    "alignment type": (header(0, 1) + key("general.alignment") + struct.pack("<IB", 7, 1) + ROOM, "is True"),
    "dimensions 0": (header(1) + tensor("t", []) + ROOM, "0 dimensions"),
    "dimensions 5": (header(1) + tensor("t", [1] * 5) + ROOM, "5 dimensions"),
    "empty dimension": (header(1) + tensor("t", [4, 0]) + ROOM, "empty dimension"),
    "overflowing product": (header(1) + tensor("t", [2**32, 2**32]) + ROOM, "but the file has"),
    "huge product": (header(1) + tensor("t", [2**63, 2**63, 2**63, 2**63]) + ROOM, "but the file has"),
    "tensor type": (header(1) + tensor("t", [4], 77) + ROOM, "unknown type 77"),
    "withdrawn type": (header(1) + tensor("t", [4], 31) + ROOM, "Q4_0_4_4"),
    "row and block": (header(1) + tensor("t", [33], 2) + ROOM, "33 elements"),
    "offset outside": (header(1) + tensor("t", [4], 0, 8192) + ROOM, "but the file has"),
    "offset overflows": (header(1) + tensor("t", [4], 0, 2**64 - 32) + ROOM, "but the file has"),
    "offset misaligned": (header(1) + tensor("t", [4], 0, 4) + ROOM, "multiple of the alignment"),
    "overlap": (
        header(2) + tensor("a", [64]) + tensor("b", [64], 0, 32) + ROOM,
        "overlap those of tensor 'a'",
    ),
    "duplicate tensor": (header(2) + tensor("a", [4]) + tensor("a", [4], 0, 32) + ROOM, "duplicate name"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    content, expected = DAMAGE[case]
    assert expected in error_of(tmp_path / "damaged.gguf", content)


def test_claims_of_a_large_file_do_not_take_memory(tmp_path: Path) -> None:
    """A sparse file of 2 GiB whose zeros read as 250 million empty strings."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(header(0, 1) + key("k") + array(8, 200_000_000))
    with path.open("r+b") as file:
        file.truncate(2 << 30)
    start = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            read_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 1


def read_whole(path: Path) -> None:
    """Open as far as it goes, and touch every byte it hands out."""
    checkpoint = open_checkpoint(path)
    for tensor in checkpoint.tensors.values():
        int(tensor.data.sum())


def test_cut_at_every_byte(small_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    data = min(tensor.offset for tensor in _tensors(small_bytes, tmp_path))
    cuts = [*range(data), *range(data, len(small_bytes), 997)]
    for cut in cuts:
        error_of(path, small_bytes[:cut], read_whole)


def _tensors(content: bytes, tmp_path: Path) -> list:
    (tmp_path / "whole.gguf").write_bytes(content)
    return list(read_gguf(tmp_path / "whole.gguf").tensors.values())


def read_or_refuse(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with contextlib.suppress(ModelFileError):
        read_whole(path)


def test_flipped_bits(small_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "flip.gguf"
    data = min(tensor.offset for tensor in _tensors(small_bytes, tmp_path))
    for position in range(data):
        changed = bytearray(small_bytes)
        changed[position] ^= 1 << (position * 5 % 8)
        read_or_refuse(path, bytes(changed))


INTERESTING = st.sampled_from(
    [b"\0" * 8, b"\xff" * 8, b"\xff" * 4, struct.pack("<Q", 2**63), struct.pack("<I", 9), b"\x01", b"\x80"]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage(small_bytes: bytes, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(small_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        # Nearly all that can go wrong lies in the header, at the front.
        position = data.draw(st.integers(0, 2500))
        patch = data.draw(st.one_of(INTERESTING, st.binary(min_size=1, max_size=8)))
        if data.draw(st.booleans()):
            content[position : position + len(patch)] = patch
        else:
            content[position:position] = patch
    read_or_refuse(tmp_path / "random.gguf", bytes(content))
