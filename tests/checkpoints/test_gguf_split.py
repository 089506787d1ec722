"""Models in several GGUF files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from gguf_files import llama_tensors, write_model
from tokentrail.checkpoints import model_name, open_checkpoint
from tokentrail.checkpoints.gguf_split import gguf_part_names
from tokentrail.protocol import ModelFileError

TOKENS = ["<|endoftext|>", *"abcdefg"]


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    write_model(tmp_path / "tiny.gguf", tokens=TOKENS, split_tensors=4)
    return sorted(tmp_path.glob("*.gguf"))


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_part_opens_the_model(parts: list[Path], tmp_path: Path) -> None:
    assert [path.name for path in parts] == [f"tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    (tmp_path / "one").mkdir()
    whole = open_checkpoint(write_model(tmp_path / "one" / "tiny.gguf", tokens=TOKENS))
    fingerprints = set()
    for path in [*parts, tmp_path]:
        checkpoint = open_checkpoint(path)
        assert checkpoint.config == whole.config
        assert checkpoint.path == parts[0]
        assert checkpoint.tensors.keys() == whole.tensors.keys()
        for name, tensor in whole.tensors.items():
            assert np.array_equal(checkpoint.tensors[name].data, tensor.data)
        fingerprints.add(checkpoint.fingerprint)
    assert len(fingerprints) == 1
    assert model_name(parts[0]) == "tiny"


def test_other_weights_in_any_part_are_another_model(parts: list[Path], tmp_path: Path) -> None:
    before = open_checkpoint(parts[0]).fingerprint
    write_model(
        tmp_path / "tiny.gguf", tokens=TOKENS, tensors=llama_tensors(len(TOKENS), seed=1), split_tensors=4
    )
    assert open_checkpoint(parts[0]).fingerprint != before


@pytest.mark.parametrize("index", [0, 1, 2])
def test_missing_parts_are_named(parts: list[Path], index: int) -> None:
    parts[index].unlink()
    said = refusal(parts[(index + 1) % 3])
    assert f"1 of 3 parts of the model are missing: tiny-0000{index + 1}-of-00003.gguf" in said


def test_parts_that_do_not_belong_together(parts: list[Path], tmp_path: Path) -> None:
    content = parts[1].read_bytes()
    shutil.copy(parts[2], parts[1])
    assert "is not part 2 of 3" in refusal(parts[0])
    parts[1].write_bytes(content)
    other = tmp_path / "other"
    other.mkdir()

    def last_part_of(tensors: dict[str, np.ndarray]) -> None:
        write_model(other / "tiny.gguf", tokens=TOKENS, tensors=tensors, split_tensors=4)
        shutil.copy(other / parts[2].name, parts[2])

    last_part_of(llama_tensors(len(TOKENS), tied=False))
    assert "as well" in refusal(parts[0])
    fewer = llama_tensors(len(TOKENS))
    fewer.popitem()
    last_part_of(fewer)
    assert "hold 10 tensors together, but 11 are announced" in refusal(parts[0])
    for path in parts:
        path.rename(path.with_name(f"renamed-{path.name[5:10]}.gguf"))
    assert "is not named like one" in refusal(parts[0].with_name("renamed-00001.gguf"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.gguf", ["a.gguf"]),
        ("a-00002-of-00002.gguf", ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]),
        ("a-00003-of-00002.gguf", ["a-00003-of-00002.gguf"]),
        ("a-00000-of-00002.gguf", ["a-00000-of-00002.gguf"]),
    ],
)
def test_names_of_parts(name: str, expected: list[str]) -> None:
    assert gguf_part_names(name) == expected
