"""tokenizer.model, vocab.json with merges.txt, and tiktoken files, against the libraries that they are made for."""

from __future__ import annotations

import base64
import io
import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer import TEXTS
from tokenizers import Tokenizer as Library

from tokenizer_folders import TEXT, assert_works_or_says_why, trained
from tokentrail.checkpoints import read_folder_tokenizer
from tokentrail.protocol import ModelFileError
from tokentrail.text import Tokenizer, build_tokenizer
from tokentrail.text.byte_level import decode_byte_level
from tokentrail.text.pretokenizers import PRE_TOKENIZERS

SIZE = 1000


def opened(folder: Path, size: int = SIZE, **source: Any) -> Tokenizer:
    return build_tokenizer(
        read_folder_tokenizer(folder, vocab_size=size, **source), vocab_size=size, origin=str(folder)
    )


# --- SentencePiece ------------------------------------------------------------------------------------------

IDENTITY: dict[str, Any] = {"normalization_rule_name": "identity"}
SPACES_KEPT = {**IDENTITY, "remove_extra_whitespaces": False}
MODELS: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe", "byte_fallback": True, **SPACES_KEPT},
    "bpe without bytes": {"model_type": "bpe", **IDENTITY},
    "bpe with words": {
        "model_type": "bpe",
        "byte_fallback": True,
        "user_defined_symbols": ["<|im|>", "▁▁▁▁", "7", "fox▁ju", "lazy dog"],
        "add_dummy_prefix": False,
        **SPACES_KEPT,
    },
    "words and tidied spaces": {"model_type": "bpe", "user_defined_symbols": ["<|im|>", "fox"], **IDENTITY},
    "unigram": {"model_type": "unigram", **IDENTITY},
    "unigram with bytes": {
        "model_type": "unigram",
        "byte_fallback": True,
        "user_defined_symbols": ["<|im|>"],
    },
    "unigram, nmt_nfkc": {"model_type": "unigram"},
}


def write_sentencepiece(sentencepiece: Any, folder: Path, **options: Any) -> Path:
    path = folder / "tokenizer.model"
    path.write_bytes(_sentencepiece(sentencepiece, json.dumps(options)))
    return path


@cache
def _sentencepiece(sentencepiece: Any, options: str) -> bytes:
    values, model = json.loads(options), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=model,
        vocab_size=420 if values.get("byte_fallback") else 260,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        **values,
    )
    return model.getvalue()


@pytest.fixture(scope="module", params=MODELS)
def sentencepieces(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("sentencepiece")
    path = write_sentencepiece(sentencepiece, folder, **MODELS[request.param])
    return opened(folder), sentencepiece.SentencePieceProcessor(model_file=str(path))


PIECES = st.sampled_from(
    [
        "<|im|>",
        "    ",
        "7",
        "fox",
        "fox ju",
        "The quick",
        " ",
        "  ",
        "世界",
        "\n",
        "zz",
        "é",
        "<s>",
        "</s>",
        "<0x0A>",
    ]
)


@pytest.mark.parametrize("text", [text for text in TEXTS if "\0" not in text])
def test_sentencepiece(text: str, sentencepieces: tuple[Tokenizer, Any]) -> None:
    ours, theirs = sentencepieces
    ids = theirs.encode(text)
    assert ours.encode(text, add_special_tokens=False, parse_special=False) == ids
    assert ours.decode(ids, text_start=True) == theirs.decode(ids).replace("⁇", "<unk>").replace(
        " <unk> ", ""
    )


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.one_of(st.text("aeTqu  é世.\n", max_size=6), PIECES), max_size=8).map("".join))
def test_random_sentencepiece(text: str, sentencepieces: tuple[Tokenizer, Any]) -> None:
    ours, theirs = sentencepieces
    assert ours.encode(text, add_special_tokens=False, parse_special=False) == theirs.encode(text)


def test_control_tokens_of_sentencepiece(sentencepieces: tuple[Tokenizer, Any]) -> None:
    ours, theirs = sentencepieces
    assert (ours.bos_token_id, ours.eos_token_ids) == (theirs.bos_id(), (theirs.eos_id(),))
    ids = ours.encode("fox</s>", add_special_tokens=False)
    assert ids[-1] == theirs.eos_id()
    assert ours.decode(ids, text_start=True) == "fox"
    assert ours.vocab_size == SIZE
    assert ours.token_bytes(SIZE - 1) == b""


def test_spaces_after_control_tokens(tmp_path: Path) -> None:
    """As `transformers` has it: with `legacy`, which is the default, text begins anew after each."""
    sentencepiece = pytest.importorskip("sentencepiece")
    write_sentencepiece(sentencepiece, tmp_path, model_type="bpe", byte_fallback=True)
    anew = opened(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": false}')
    once = opened(tmp_path)
    space = anew.encode("fox", add_special_tokens=False)
    assert anew.encode("</s>fox", add_special_tokens=False) == [2, *space]
    assert once.encode("fox", add_special_tokens=False) == space
    assert once.decode(once.encode("</s>fox", add_special_tokens=False)) == "fox"
    assert anew.decode([2, *space]) == " fox"


def test_added_tokens_of_sentencepiece_folders(tmp_path: Path) -> None:
    """They replace pieces that hold their places, come behind all pieces, or are pieces already."""
    sentencepiece = pytest.importorskip("sentencepiece")
    write_sentencepiece(sentencepiece, tmp_path, model_type="bpe", byte_fallback=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    place, fox = pieces.piece_to_id("<0xFF>"), pieces.piece_to_id("▁The")
    decoder = {
        str(place): {"content": "<|mask|>", "special": True},
        str(len(pieces) + 5): {"content": "<|im_end|>", "special": True},
        str(SIZE + 7): {"content": "<|beyond|>", "special": True},
        str(fox): {"content": "▁The", "special": False},
    }
    values = {"eos_token": "<|im_end|>", "bos_token": "<s>", "added_tokens_decoder": decoder}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    ours = opened(tmp_path)
    assert ours.encode("<|mask|><|im_end|>", add_special_tokens=False) == [place, len(pieces) + 5]
    assert ours.eos_token_ids == (len(pieces) + 5,)
    assert ours.decode([place], skip_special_tokens=False) == "<|mask|>"
    assert max(ours.encode("<|beyond|>")) < SIZE
    source = read_folder_tokenizer(tmp_path, vocab_size=SIZE)
    assert source.tokens[len(pieces) + 5] == "<|im_end|>"
    assert len(source.tokens) == SIZE


# --- vocab.json with merges.txt -----------------------------------------------------------------------------


def write_bpe_files(folder: Path, family: str, **values: Any) -> Path:
    model = json.loads(trained(family))["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    values = {"bos_token": None, "eos_token": "</s>", **values}
    (folder / "tokenizer_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("text", TEXTS)
def test_qwen2_files(text: str, tmp_path: Path) -> None:
    ours = opened(write_bpe_files(tmp_path, "qwen2", tokenizer_class="Qwen2Tokenizer"))
    theirs = Library.from_str(trained("qwen2"))
    for special in ("<left>", "<right>", "Word", "<Ñ>", "  "):  # added tokens, which are in no vocab.json
        text = text.replace(special, "x")
    assert ours.encode(text) == theirs.encode(text).ids
    assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text))


def test_added_tokens_of_bpe_files(tmp_path: Path) -> None:
    write_bpe_files(
        tmp_path, "qwen2", tokenizer_class="Qwen2Tokenizer", additional_special_tokens=["<|im_end|>"]
    )
    (tmp_path / "added_tokens.json").write_text('{"<|im_end|>": 800, "<tool>": 801}')
    ours = opened(tmp_path)
    assert ours.encode("a<|im_end|><tool>")[1:] == [800, 801]
    assert ours.is_special(800)
    assert not ours.is_special(801)
    assert ours.eos_token_ids == (1, 4, 800)


# --- tiktoken -----------------------------------------------------------------------------------------------


def ranks_of(family: str) -> dict[bytes, int]:
    """A vocabulary as tiktoken files have it: merged tokens behind all bytes, in the order of merging."""
    model = json.loads(trained(family))["model"]
    tokens = [bytes([byte]) for byte in range(256)]
    for pair in model["merges"]:
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        token = decode_byte_level(left) + decode_byte_level(right)
        if token not in tokens:
            tokens.append(token)
    return {token: rank for rank, token in enumerate(tokens)}


def write_tiktoken(path: Path, ranks: dict[bytes, int]) -> None:
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    path.write_bytes(b"".join(lines))


@pytest.fixture(scope="module", params=["qwen.tiktoken", "tokenizer.model"])
def tiktokens(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    tiktoken = pytest.importorskip("tiktoken")
    folder, ranks = tmp_path_factory.mktemp("tiktoken"), ranks_of("qwen2")
    write_tiktoken(folder / request.param, ranks)
    qwen = request.param == "qwen.tiktoken"
    (pattern,) = PRE_TOKENIZERS["qwen2" if qwen else "llama-bpe"].patterns
    special = {
        text: len(ranks) + at for at, text in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    }
    theirs = tiktoken.Encoding(
        "t", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special if qwen else {}
    )
    return opened(folder, model_type="qwen" if qwen else "llama"), theirs


@pytest.mark.parametrize("text", TEXTS)
def test_tiktoken(text: str, tiktokens: tuple[Tokenizer, Any]) -> None:
    ours, theirs = tiktokens
    ids = theirs.encode(
        unicodedata.normalize("NFC", text) if ours.eos_token_ids else text, allowed_special="all"
    )
    assert ours.encode(text, add_special_tokens=False) == ids
    assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("abehnoqrstu TQ世界é.\n0123\t'’"), max_size=60))
def test_random_tiktoken(text: str, tiktokens: tuple[Tokenizer, Any]) -> None:
    ours, theirs = tiktokens
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text)


# --- damaged files ------------------------------------------------------------------------------------------


def refused(folder: Path, size: int = SIZE) -> str:
    with pytest.raises(ModelFileError) as caught:
        opened(folder, size)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    assert len(message) < 1000
    return message


def test_no_tokenizer(tmp_path: Path) -> None:
    assert "there is no tokenizer" in refused(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")  # merges.txt is missing
    assert "there is no tokenizer" in refused(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("vocab.json", "{", "is not the JSON it should be"),
        ("vocab.json", "[]", "is not the JSON it should be"),
        ("vocab.json", '{"a": "b"}', "is not the JSON it should be"),
        ("vocab.json", '{"a": 1}', "the ids of its 1 tokens are not 0 to 0"),
        ("vocab.json", '{"a": 0, "b": 0}', "the ids of its 2 tokens are not 0 to 1"),
        ("vocab.json", '{"a": -1}', "the ids of its 1 tokens are not 0 to 0"),
        ("vocab.json", '{"a": 4294967296}', "the ids of its 1 tokens are not 0 to 0"),
        ("merges.txt", b"\xff\xfe", "is not UTF-8"),
        ("merges.txt", "#version: 0.2\n", "merges are missing"),
        ("added_tokens.json", '{"a": 1.5}', "is not the JSON it should be"),
        ("tokenizer_config.json", "[]", "is not valid JSON: no object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"a": {}}}', "added_tokens_decoder"),
        ("tokenizer_config.json", '{"add_bos_token": "yes"}', "add_bos_token must be true or false"),
        ("special_tokens_map.json", "7", "is not valid JSON: no object"),
    ],
)
def test_damaged_bpe_files(name: str, content: str | bytes, expected: str, tmp_path: Path) -> None:
    write_bpe_files(tmp_path, "qwen2")
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert expected in refused(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"YQ== 0\nYg== 2\n", "the ranks of its 2 tokens are not 0 to 1"),
        (b"YQ== 0\nYQ== 1\n", "the ranks of its 1 tokens are not 0 to 0"),
        (b"YQ== 0\nnonsense\n", "line 2 is not a token in Base64 and its rank"),
        (b"YQ== 0\n!! 1\n", "line 2 is not"),
        (b"YQ== 0\nYg== x\n", "line 2 is not"),
        (b"", "tiktoken"),
        (b"\xff" * 100, "line 1 is not"),
    ],
)
def test_damaged_tiktoken_files(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"qwen\.tiktoken") as caught:
        opened(tmp_path)
    assert expected in str(caught.value)


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protocol buffer: a number or bytes of at most 127."""
    if isinstance(value, int):
        return bytes(
            [number << 3 & 127 | (128 if number > 15 else 0), *([number >> 4] if number > 15 else []), value]
        )
    return bytes([number << 3 | 2, len(value)]) + value


PIECE = field(1, field(1, b"a"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (field(2, b""), "has no pieces"),
        (PIECE[:-1], "a field of"),
        (PIECE + b"\x0a\xff\xff\xff\x7f", "where 0 are left"),
        (PIECE + b"\x0a" + b"\xff" * 20, "an unfinished number"),
        (PIECE + b"\x0b", "a field of kind 3"),
        (PIECE + b"\x08\x01", "a number where bytes should be"),
        (field(1, field(1, b"\xff")), "a piece that is not UTF-8"),
        (field(1, field(1, b"a") + b"\x15\x00\x00\xc0\x7f"), "has the score nan"),
        (field(1, field(1, b"a") + field(3, 9)), "piece 0 is of type 9"),
        (field(1, field(1, b"a") + field(2, b"1")), "a score that is no float"),
        (PIECE + field(2, field(3, 3)), "of type 3"),
        (PIECE + PIECE, "has the piece 'a' twice"),
        (PIECE + field(2, field(40, 7)), "unk_id is 7, but there are 1 pieces"),
    ],
)
def test_damaged_sentencepiece_models(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    assert expected in refused(tmp_path)


def test_more_tokens_than_the_model_has(tmp_path: Path) -> None:
    count = len(json.loads(trained("qwen2"))["model"]["vocab"])
    said = refused(write_bpe_files(tmp_path, "qwen2"), size=count - 1)
    assert f"the tokenizer has {count} tokens, but the model only {count - 1}" in said


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_flipped_bytes(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("flipped")
    kind = data.draw(st.sampled_from(["unigram", "bpe", "merges", "tiktoken"]))
    if kind in ("unigram", "bpe"):
        write_sentencepiece(sentencepiece, folder, model_type=kind, byte_fallback=True)
    elif kind == "merges":
        write_bpe_files(folder, "qwen2")
    else:
        write_tiktoken(folder / "qwen.tiktoken", ranks_of("qwen2"))
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    assert_works_or_says_why(lambda: opened(folder), (TEXTS[1], TEXTS[3]))
