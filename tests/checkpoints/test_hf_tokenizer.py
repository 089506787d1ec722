"""What a folder's small files say of its tokenizer and chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_model
from hf_folders import VOCAB, write_folder
from tokentrail.checkpoints import (
    AddedToken,
    end_token_ids,
    open_checkpoint,
    read_chat_templates,
    read_folder_tokenizer,
)
from tokentrail.protocol import ModelFileError


def write(folder: Path, **files: Any) -> Path:
    """`tokenizer_config={...}` becomes tokenizer_config.json; texts are written as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / (name.replace("__", ".") if "__" in name else f"{name}.json")).write_text(
            text, encoding="utf-8"
        )
    return folder


LLAMA = {
    "model": {"vocab": {"a": 0, "b": 1}, "merges": []},
    "added_tokens": [{"id": 2, "content": "<s>", "special": True}],
}
NAMED = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]


def test_settings_of_real_models(tmp_path: Path) -> None:
    """`model_max_length` as `transformers` writes it where there is none: the integer of the float 1e30."""
    settings = {
        "added_tokens_decoder": {"2": {"content": "<s>", "special": True, "lstrip": False}},
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "__type": "AddedToken"},
        "image_token": "<image>",
        "model_max_length": 1000000000000000019884624838656,
        "clean_up_tokenization_spaces": True,
        "extra_special_tokens": {"video": "<video>"},
    }
    source = read_folder_tokenizer(
        write(tmp_path, tokenizer=LLAMA, tokenizer_config=settings), vocab_size=8, eos_token_id=7
    )
    assert (source.kind, source.bos_token_id, source.eos_token_id) == ("tokenizer.json", 2, 7)
    assert source.added_tokens == (
        AddedToken("<s>", 2, special=True),
        AddedToken("</s>", None, special=True, normalized=False),
        AddedToken("<video>", None, special=True, normalized=False),
    )
    assert source.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<image>"}
    assert list(source.tokens) == ["a", "b", "<s>", "", "", "", "", ""]


def test_older_settings_are_read_where_newer_ones_are_missing(tmp_path: Path) -> None:
    older = {"bos_token": {"content": "<s>", "lstrip": False}, "additional_special_tokens": ["<x>"]}
    folder = write(tmp_path, tokenizer=LLAMA, special_tokens_map=older, tokenizer_config={"eos_token": "b"})
    source = read_folder_tokenizer(folder, vocab_size=3)
    assert (source.bos_token_id, source.eos_token_id) == (2, 1)
    assert [token.text for token in source.added_tokens] == ["<s>", "b", "<x>"]
    write(tmp_path, tokenizer_config={"added_tokens_decoder": {"2": {"content": "<s>"}}})
    assert read_folder_tokenizer(folder, vocab_size=3).bos_token_id is None


def test_ids_beyond_the_embedding_do_not_count(tmp_path: Path) -> None:
    settings = {"eos_token": "<e>", "added_tokens_decoder": {"99": {"content": "<e>"}}}
    folder = write(tmp_path, tokenizer=LLAMA, tokenizer_config=settings)
    assert read_folder_tokenizer(folder, vocab_size=3, eos_token_id=1).eos_token_id == 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {}),
        ({"tokenizer_config": {"chat_template": "one"}}, {"default": "one"}),
        ({"tokenizer_config": {"chat_template": None}}, {}),
        ({"tokenizer_config": {"chat_template": NAMED}}, {"default": "a", "rag": "b"}),
        ({"tokenizer_config": {"chat_template": {"default": "a", "tool_use": "b"}}}, {"default": "a", "tool_use": "b"}),
        ({"chat_template": {"chat_template": "of a processor"}}, {"default": "of a processor"}),
        ({"tokenizer_config": {"chat_template": "one"}, "chat_template": {"chat_template": "two"}}, {"default": "one"}),
        ({"tokenizer_config": {"chat_template": "one"}, "chat_template__jinja": "file é"}, {"default": "file é"}),
    ],
)  # fmt: skip
def test_chat_templates(files: dict, expected: dict, tmp_path: Path) -> None:
    assert read_chat_templates(write(tmp_path, **files)) == expected


def test_chat_templates_in_files_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"chat_template": "old"}, chat_template__jinja="default")
    write(
        tmp_path / "additional_chat_templates",
        tool_use__jinja="tools",
        rag__jinja="documents",
        other__txt="no",
    )
    assert read_chat_templates(tmp_path) == {"default": "default", "tool_use": "tools", "rag": "documents"}


@pytest.mark.parametrize(
    "value", [7, [7], ["text"], [{"name": "a"}], [{"name": 1, "template": "x"}], {"a": 1}]
)
def test_chat_templates_that_are_none(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="chat_template must be a text") as caught:
        read_chat_templates(write(tmp_path, tokenizer_config={"chat_template": value}))
    assert "--chat-template" in str(caught.value)


def test_checkpoints_have_named_templates(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}
    folder = open_checkpoint(write_folder(tmp_path / "m", files={"tokenizer_config.json": config}))
    assert (folder.chat_template, folder.named_templates) == ("a", {"tool_use": "b"})
    assert len(folder.tokenizer.tokens) == VOCAB
    metadata = {
        "tokenizer.chat_template": "a",
        "tokenizer.chat_template.tool_use": "b",
        "tokenizer.chat_templates": ["tool_use"],
    }
    gguf = open_checkpoint(write_model(tmp_path / "m.gguf", tokens=["a", "b", "ab"], metadata=metadata))
    assert (gguf.chat_template, gguf.named_templates) == ("a", {"tool_use": "b"})


def test_gpt_oss_goes_on_after_a_message(tmp_path: Path) -> None:
    """Its answers have several messages, each ended by <|end|>."""
    texts = ["<|return|>", "<|call|>", "<|end|>", "<|endoftext|>"]
    for count, expected in ((4, (3, 4, 6)), (1, (3, 5, 6))):
        decoder = {
            str(at + 3): {"content": text, "special": True}
            for at, text in enumerate(texts)
            if count == 4 or at != 1
        }
        folder = write(tmp_path, tokenizer=LLAMA, tokenizer_config={"added_tokens_decoder": decoder})

        assert end_token_ids(read_folder_tokenizer(folder, vocab_size=9)) == expected
        decoder.pop("4", None)  # without <|call|> it is another model
