"""GGUF's Unigram (`t5`) and Gemma 4 tokenizers against llama.cpp, on vocabularies of trained tokenizers."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer import TEXTS

from gguf_files import write_model
from llama_oracle import LlamaCpp
from tokenizer_folders import TEXT, trained
from tokentrail.checkpoints import open_checkpoint, read_sentencepiece
from tokentrail.protocol import ModelFileError
from tokentrail.text import Tokenizer

PREFIX = "tokenizer.ggml."


def write_t5(path: Path, charsmap: bool, **metadata: Any) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=model,
        model_type="unigram",
        vocab_size=260,
        hard_vocab_limit=False,
        character_coverage=0.98,
        user_defined_symbols=["<|user|>", "fox"],
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        normalization_rule_name="nmt_nfkc" if charsmap else "identity",
        minloglevel=2,
    )
    file = path.with_suffix(".model")
    file.write_bytes(model.getvalue())
    read = read_sentencepiece(file)
    values: dict[str, Any] = {"eos_token_id": 1, "unknown_token_id": 2, "padding_token_id": 0, **metadata}
    if charsmap:
        values["precompiled_charsmap"] = read.charsmap
    return write_model(
        path,
        kind="t5",
        pre=None,
        merges=None,
        tokens=read.pieces,
        types=read.types,
        scores=read.scores,
        metadata={PREFIX + name: value for name, value in values.items()},
    )


T5 = {
    "as T5": (True, {"add_space_prefix": True, "remove_extra_whitespaces": True}),
    "no rules": (False, {"add_space_prefix": True}),
    "no prefix": (False, {"add_space_prefix": False}),
    "bos and no eos": (False, {"bos_token_id": 0, "add_bos_token": True, "add_eos_token": False}),
}


@pytest.fixture(scope="module", params=T5)
def unigram(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, LlamaCpp]:
    charsmap, metadata = T5[request.param]
    path = write_t5(tmp_path_factory.mktemp("t5") / "t5.gguf", charsmap, **metadata)
    return Tokenizer.from_checkpoint(open_checkpoint(path)), LlamaCpp(path)


@pytest.mark.parametrize("text", TEXTS)
def test_unigram_equals_llama_cpp(text: str, unigram: tuple[Tokenizer, LlamaCpp]) -> None:
    ours, theirs = unigram
    for parse in (True, False):
        assert ours.encode(text, parse_special=parse) == theirs.encode(text, parse_special=parse)


PIECES = st.sampled_from(
    [*("<|user|>", "</s>", "fox", "The quick", " ", "  ", "世界", "\n", "\t", "zz", "é", "½", "ﬁ", "e\u0301")]
)


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.one_of(st.text("aeTqu  é世.\n", max_size=6), PIECES), max_size=8).map("".join))
def test_random_unigram_equals_llama_cpp(text: str, unigram: tuple[Tokenizer, LlamaCpp]) -> None:
    ours, theirs = unigram
    assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize(
    "data", [[1], [255] * 4, [4, 0, 0, 0, 1, 2, 3, 4, 5], [0] * 9, [200, 0, 0, 0, *[7] * 20, 0]]
)
def test_damaged_rules(data: list[int], tmp_path: Path) -> None:
    path = write_t5(tmp_path / "m.gguf", False, precompiled_charsmap=bytes(data))
    with pytest.raises(ModelFileError, match="normalization rules are damaged") as caught:
        Tokenizer.from_checkpoint(open_checkpoint(path))
    assert str(path) in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_random_rules_end(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Units that point anywhere: a text becomes something or other, in time."""
    from tokentrail.text.charsmap import Charsmap

    units = np.array(
        data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300)), "<u4"
    ).tobytes()
    rules = Charsmap(len(units).to_bytes(4, "little") + units + b"abc\0\xff\0", "file")
    assert len(rules("The quick ½ brown fox " * 10)) < 2000


# --- Gemma 4 ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["gemma4", "gpt2"])
def gemma(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, LlamaCpp]:
    """As a model of its own, or as a pre-tokenizer of the general one."""
    value = json.loads(trained("gemma"))
    model = value["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = {token["content"] for token in value["added_tokens"] if token["special"]}
    types = [3 if token in special else 6 if re.fullmatch("<0x..>", token) else 1 for token in tokens]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    path = write_model(
        tmp_path_factory.mktemp("gemma") / "gemma.gguf",
        kind=request.param,
        pre=None if request.param == "gemma4" else "gemma4",
        tokens=tokens,
        types=types,
        merges=merges,
        metadata={PREFIX + "bos_token_id": 0, PREFIX + "eos_token_id": 1},
    )
    return Tokenizer.from_checkpoint(open_checkpoint(path)), LlamaCpp(path)


@pytest.mark.parametrize("text", TEXTS)
def test_gemma_equals_llama_cpp(text: str, gemma: tuple[Tokenizer, LlamaCpp]) -> None:
    ours, theirs = gemma
    for parse in (True, False):
        ids = theirs.encode(text, parse_special=parse)
        assert ours.encode(text, parse_special=parse) == ids
    shown = ours.decode(ids, skip_special_tokens=False)
    assert shown == theirs.decode(ids)


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.one_of(st.text("aeTqu  é世.\n", max_size=6), PIECES), max_size=8).map("".join))
def test_random_gemma_equals_llama_cpp(text: str, gemma: tuple[Tokenizer, LlamaCpp]) -> None:
    ours, theirs = gemma
    assert ours.encode(text) == theirs.encode(text)
