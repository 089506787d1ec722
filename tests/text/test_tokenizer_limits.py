"""Tokenizers that would take memory or time without end are refused when they are loaded; ordinary ones are not."""

from __future__ import annotations

import base64
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from tokenizer_folders import FAMILIES, trained, write_tokenizer
from tokentrail.checkpoints import TokenizerSource, read_folder_tokenizer
from tokentrail.protocol import ModelFileError
from tokentrail.text import Tokenizer, build_tokenizer, tokenizer_limits
from tokentrail.text.charsmap import Charsmap

A = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}


def charsmap(longest: int) -> bytes:
    return struct.pack("<II", 4, 0) + b"a" * longest + b"\0"


def opened(folder: Path, **parts: Any) -> Tokenizer:
    write_tokenizer(folder, "llama3")
    value = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps({**value, **parts}), encoding="utf-8")
    return build_tokenizer(
        read_folder_tokenizer(folder, vocab_size=1000), vocab_size=1000, origin=str(folder)
    )


def sequence(name: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", name: list(steps)}


def split(pattern: str) -> dict[str, Any]:
    return {**SPLIT, "pattern": {"Regex": pattern}}


@pytest.mark.parametrize("family", FAMILIES)
def test_ordinary_tokenizers_pass(family: str) -> None:
    from tokenizers import Tokenizer as Library

    tokenizer_limits.check_limits(Library.from_str(trained(family)), "it")


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"normalizer": sequence("normalizers", *[A] * 40)}, "2.2e+12 times longer"),
        ({"normalizer": {**A, "content": "a" * 2000}}, "characters by 2000"),
        ({"normalizer": sequence("normalizers", *[sequence("normalizers", *[A] * 7)] * 2)}, "times longer"),
        ({"normalizer": {**A, "pattern": {"Regex": "x*"}, "content": "a" * 1025}}, "characters by 1025"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 5000}}, "characters by 5000"),
        ({"pre_tokenizer": sequence("pretokenizers", *[BYTE_LEVEL] * 40)}, "times longer"),
        ({"decoder": sequence("decoders", *[A] * 40)}, "its decoder makes"),
        ({"post_processor": {**TEMPLATE, "single": [SEQUENCE] * 50}}, "the text 50 times"),
        ({"pre_tokenizer": sequence("pretokenizers", *[split("a")] * 100)}, "100 patterns"),
        ({"pre_tokenizer": split("a" * 5000)}, "pattern of 5000 characters"),
    ],
)
def test_texts_cannot_grow_without_end(parts: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        opened(tmp_path, **parts)
    assert problem in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "pattern", [r"(a|a)*[!]c", r"(a*)*[!]d", r"a*a*a*[!]d", r"q*q*[!]d", "a*" * 99 + "[!]d"]
)
def test_patterns_that_look_back_without_end(pattern: str, tmp_path: Path) -> None:
    """Oniguruma ends a match after ten million steps, but not a search of as many matches as there are characters."""
    started = time.process_time()
    with pytest.raises(ModelFileError, match="patterns take too long"):
        opened(tmp_path, pre_tokenizer=split(pattern))
    assert time.process_time() - started < 20


def test_strips_of_more_than_a_token_has(tmp_path: Path) -> None:
    decoder = {"type": "Strip", "content": "a", "start": 1 << 60, "stop": 1 << 60}
    assert opened(tmp_path, decoder=decoder).token_bytes(300) is not None


def test_too_many_added_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokentrail.text.library_tokenizer.MAX_ADDED_TOKENS", 3)
    with pytest.raises(ModelFileError, match="added tokens; at most 3"):
        opened(tmp_path)


@pytest.mark.parametrize("longest", [1025, 1 << 20])
def test_normalization_rules_with_long_strings(longest: int, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"by {longest} bytes"):
        Charsmap(charsmap(longest), "it")
    encoded = base64.b64encode(charsmap(longest)).decode()
    with pytest.raises(ModelFileError):
        opened(tmp_path, normalizer={"type": "Precompiled", "precompiled_charsmap": encoded})


def test_vocabularies_of_single_characters() -> None:
    """The library panics over a merge whose result is longer than every token."""
    source = TokenizerSource(kind="gpt2", pre="gpt-2", tokens=list("abcd"), merges=["a b", "b", ""])
    assert build_tokenizer(source).encode("abad") == [0, 1, 0, 3]
