"""The safetensors reader: what it reads, and every kind of damage."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_folders import bfloat16, write_raw, write_safetensors, write_shards
from tokentrail.checkpoints.safetensors import MAX_HEADER_BYTES, read_folder_tensors, read_safetensors
from tokentrail.protocol import ModelFileError

SAMPLE = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": bfloat16(np.ones((2, 2))),
    "c": np.array(7, np.int64),
    "empty": np.zeros((0, 4), np.float16),
    "d": np.arange(5, dtype=np.uint8),
}


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_safetensors(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 600
    return message


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    file = read_safetensors(write_safetensors(tmp_path / "x.safetensors", SAMPLE, metadata={"format": "pt"}))
    assert file.metadata == {"format": "pt"}
    assert list(file.tensors) == list(SAMPLE)
    for name, array in SAMPLE.items():
        tensor = file.tensors[name]
        assert tensor.shape == array.shape
        assert tensor.data.tobytes() == array.tobytes()
        assert not tensor.data.flags.writeable
        tensor.release()
        assert tensor.data.tobytes() == array.tobytes()
        if tensor.dtype != "BF16":
            assert np.array_equal(tensor.array(), array)
    assert file.tensors["b"].dtype == "BF16"


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    arrays = {name: array for name, array in SAMPLE.items() if name != "b"}
    library.save_file(arrays, tmp_path / "x.safetensors", metadata={"a": "é"})
    file = read_safetensors(tmp_path / "x.safetensors")
    assert file.metadata == {"a": "é"}
    assert all(np.array_equal(file.tensors[name].array(), array) for name, array in arrays.items())


BAD_HEADERS: list[tuple[Any, str]] = [
    (b"", "not valid JSON in its header"),
    (b"[]", "no object"),
    (b"{", "not valid JSON"),
    (b'{"a": NaN}', "NaN"),
    (b"\xff{}", "UTF-8"),
    (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    (b'{"a":' + b"9" * 5000 + b"}", "5000 digits"),
    (
        b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [2], "data_offsets": [0, 8]}}',
        "'dtype' is there twice",
    ),
    (
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, '
        b'"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        "'a' is there twice",
    ),
    ({"a": 5}, "'a' has an entry"),
    ({"a": {**entry(), "more": 1}}, "'a' has an entry"),
    ({"a": {"dtype": "F32", "shape": [2]}}, "'a' has an entry"),
    ({"a": entry("F31")}, "unknown type 'F31'"),
    ({"a": entry(["F32"])}, "unknown type"),
    ({"a": entry(shape="2")}, "impossible shape"),
    ({"a": entry(shape=[-2])}, "impossible shape"),
    ({"a": entry(shape=[2.0])}, "impossible shape"),
    ({"a": entry(shape=[True, 2])}, "impossible shape"),
    ({"a": entry(shape=[1] * 17)}, "impossible shape"),
    ({"a": entry(shape=[1 << 63])}, "impossible shape"),
    ({"a": entry(shape=[1 << 62, 1 << 62, 1 << 62])}, "8 bytes, which is not"),
    ({"a": entry(shape=[3])}, "8 bytes, which is not what (3,) in F32 takes"),
    ({"a": entry("F4", [15])}, "8 bytes, which is not"),
    ({"a": entry(offsets=[0])}, "impossible data_offsets"),
    ({"a": entry(offsets=[8, 0])}, "impossible data_offsets"),
    ({"a": entry(offsets=[-8, 0])}, "impossible data_offsets"),
    ({"a": entry(offsets=[0, "8"])}, "impossible data_offsets"),
    ({"a": entry(shape=[4], offsets=[0, 16])}, "data up to byte"),
    ({"a": entry(), "b": entry(offsets=[4, 12])}, "data up to byte"),
    ({"a": entry(), "b": entry("U8", [4], [4, 8])}, "'b' has data that overlap"),
    ({"a": entry(), "b": entry()}, "overlap"),
    ({"b": entry("U8", [4], [4, 8])}, "'b' has data that follow a gap"),
    ({"a": entry("U8", [4], [0, 4])}, "but its tensors end at byte"),
    ({"__metadata__": 3, "a": entry()}, "__metadata__"),
    ({"__metadata__": {"a": 3}, "b": entry()}, "__metadata__"),
]


@pytest.mark.parametrize(("header", "expected"), BAD_HEADERS)
def test_a_bad_header_is_refused(tmp_path: Path, header: Any, expected: str) -> None:
    assert expected in refusal(write_raw(tmp_path / "x.safetensors", header, bytes(8)))


def test_sizes_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"

    def written(content: bytes) -> str:
        path.write_bytes(content)
        return refusal(path)

    assert "is empty" in written(b"")
    assert "has only 5 bytes" in written(bytes(5))
    assert "header has 99 bytes, but the file has 10" in written(struct.pack("<Q", 99) + b"{}")
    assert "at most" in written(struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}")
    assert "at most" in written(struct.pack("<Q", 2**64 - 1) + b"{}")
    assert "is not a safetensors file" in written(b"GGUF\x03\0\0\0" + bytes(100))
    assert "is not a safetensors file" in written(b"PK\x03\x04" + b"x" * 100)  # a pickle in a zip, renamed
    assert "cannot be opened" in refusal(tmp_path / "none.safetensors")
    assert "not a regular file" in refusal(tmp_path)


def test_a_file_of_every_shorter_length_is_refused(tmp_path: Path) -> None:
    whole = write_safetensors(tmp_path / "x.safetensors", SAMPLE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "x.safetensors").write_bytes(whole[:length])
        refusal(tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").write_bytes(whole + b"\0")
    assert "its tensors end at" in refusal(tmp_path / "x.safetensors")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_never_crash(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    path = tmp_path / "x.safetensors"
    content = bytearray(write_safetensors(path, SAMPLE).read_bytes())
    for position, value in changes:
        content[position % len(content)] = value
    path.write_bytes(content)
    with contextlib.suppress(ModelFileError):
        for tensor in read_safetensors(path).tensors.values():
            assert tensor.data.nbytes == tensor.nbytes


def test_a_large_file_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    size = 1 << 30
    write_raw(path, {"a": entry("U8", [size], [0, size])}, b"")
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + size)
    tracemalloc.start()
    tensor = read_safetensors(path).tensors["a"]
    assert int(tensor.data[size // 2]) == 0
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


# --- models in several files -----------------------------------------------------------------------


def folder_refusal(folder: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_folder_tensors(folder)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


def test_shards_by_their_index(tmp_path: Path) -> None:
    write_shards(tmp_path, SAMPLE, 3)
    (tmp_path / "other.safetensors").write_bytes(b"nobody looks at it")
    tensors, files = read_folder_tensors(tmp_path)
    assert set(tensors) == set(SAMPLE)
    assert len(files) == 3
    assert all(tensors[name].data.tobytes() == SAMPLE[name].tobytes() for name in SAMPLE)


def test_missing_shards_and_tensors_are_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, SAMPLE, 3)
    content = paths[1].read_bytes()
    paths[1].unlink()
    assert "1 of 3 parts of the model are missing: model-00002-of-00003.safetensors" in folder_refusal(
        tmp_path
    )
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["more"] = paths[0].name
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    paths[1].write_bytes(content)
    said = folder_refusal(tmp_path)
    assert paths[0].name in said
    assert "tensor 'more' is missing" in said


@pytest.mark.parametrize(
    "name",
    [
        "x\x1b[1m.safetensors",
        "x\0.safetensors",
        "y" * 300 + ".safetensors",
        "../x.safetensors",
        "/etc/passwd",
        "x.bin",
        5,
        None,
        "..",
        "a\0b.safetensors",
    ],
)
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, name: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    folder_refusal(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": {}}', '{"weight_map": []}', "{", "\0"])
def test_a_bad_index_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in folder_refusal(tmp_path)


def test_files_without_an_index(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, SAMPLE, 2)
    (tmp_path / "model.safetensors.index.json").unlink()
    write_safetensors(tmp_path / "consolidated.safetensors", SAMPLE)
    assert set(read_folder_tensors(tmp_path)[0]) == set(SAMPLE)
    paths[0].unlink()
    assert "missing: model-00001-of-00002.safetensors" in folder_refusal(tmp_path)
    write_safetensors(tmp_path / "more.safetensors", {"z": SAMPLE["a"]})
    assert "holds 2 .safetensors files (model-00002-of-00002" in folder_refusal(tmp_path)
    paths[1].unlink()
    assert list(read_folder_tensors(tmp_path)[0]) == ["z"]
    write_safetensors(tmp_path / "model.safetensors", SAMPLE)
    assert set(read_folder_tensors(tmp_path)[0]) == set(SAMPLE)


def test_a_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, SAMPLE, 2)
    (tmp_path / "model.safetensors.index.json").unlink()
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", SAMPLE)
    assert "is in model-00001-of-00002.safetensors as well" in folder_refusal(tmp_path)
