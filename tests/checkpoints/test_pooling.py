"""How a model's makers want its embeddings pooled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_model
from hf_folders import write_folder
from tokentrail.checkpoints import open_checkpoint
from tokentrail.protocol import ModelFileError


def folder(path: Path, settings: Any) -> Path:
    write_folder(path)
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True, "pooling_mode_cls_token": False},
            "last",
        ),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": None}, "cls"),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({}, None),
    ],
)
def test_a_folder_of_sentence_transformers(tmp_path: Path, settings: Any, expected: str | None) -> None:
    assert open_checkpoint(folder(tmp_path / "m", settings)).pooling == expected


def test_a_plain_folder_does_not_say(tmp_path: Path) -> None:
    assert open_checkpoint(write_folder(tmp_path / "m")).pooling is None


def test_a_damaged_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="pooling_mode_mean_tokens"):
        open_checkpoint(folder(tmp_path / "m", {"pooling_mode_mean_tokens": "yes"}))


@pytest.mark.parametrize(
    ("number", "expected"), [(None, None), (0, None), (1, "mean"), (2, "cls"), (3, "last"), (4, None)]
)
def test_a_gguf_file(tmp_path: Path, number: int | None, expected: str | None) -> None:
    metadata = {} if number is None else {"llama.pooling_type": number}
    path = write_model(tmp_path / "m.gguf", tokens=["<|endoftext|>", *"abc"], metadata=metadata)
    assert open_checkpoint(path).pooling == expected
