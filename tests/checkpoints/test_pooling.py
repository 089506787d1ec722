"""How a model's makers want its embeddings pooled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_model
from hf_folders import llama_config, llama_tensors, write_folder
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


def test_a_model_without_an_output_layer(tmp_path: Path) -> None:
    """As e5-mistral and Qwen3-Embedding-8B are stored: names without prefix, untied, and no head."""
    tensors = {
        name.removeprefix("model."): array for name, array in llama_tensors().items() if "head" not in name
    }
    config = {**llama_config(tie_word_embeddings=False), "architectures": ["LlamaModel"]}
    path = write_folder(tmp_path / "m", config=config, tensors=tensors)
    with pytest.raises(ModelFileError, match="does not generate text"):
        open_checkpoint(path)
    (path / "modules.json").write_text("[]")
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.tie_embeddings


@pytest.mark.parametrize("change", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_attention_in_both_directions(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="causal"):
        open_checkpoint(write_folder(tmp_path / "m", config=llama_config(**change)))


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([{"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}], "further layer"),
        ({"type": "x"}, "is not valid"),
        ([{"type": 3}], "is not valid"),
    ],
)
def test_modules_that_change_the_vectors(tmp_path: Path, modules: Any, words: str) -> None:
    path = write_folder(tmp_path / "m", files={"modules.json": json.dumps(modules)})
    with pytest.raises(ModelFileError, match=words):
        open_checkpoint(path)


def test_the_usual_modules(tmp_path: Path) -> None:
    types = ("Transformer", "Pooling", "Normalize")
    modules = [{"idx": n, "type": f"sentence_transformers.models.{kind}"} for n, kind in enumerate(types)]
    open_checkpoint(write_folder(tmp_path / "m", files={"modules.json": json.dumps(modules)}))
