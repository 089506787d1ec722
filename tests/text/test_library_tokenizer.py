"""tokenizer.json: ids and texts equal the library's and those of `transformers`; answers stream in whole characters."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer import TEXTS
from tokenizers import Tokenizer as Library
from tokenizers.models import Unigram

from tokenizer_folders import FAMILIES, assert_works_or_says_why, trained, write_tokenizer
from tokentrail.checkpoints import end_token_ids, read_folder_tokenizer
from tokentrail.protocol import InvalidRequest, ModelFileError
from tokentrail.text import IncrementalDetokenizer, Tokenizer, build_tokenizer

SIZE = 1000
"""Rows of the embedding: more than there are tokens, as in real models."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def pair(request: pytest.FixtureRequest, folder: Path) -> tuple[Tokenizer, Library]:
    path = write_tokenizer(folder / request.param, request.param)
    return opened(path), Library.from_str(trained(request.param))


def opened(path: Path, size: int = SIZE) -> Tokenizer:
    return build_tokenizer(read_folder_tokenizer(path, vocab_size=size), vocab_size=size, origin=str(path))


WORDS = st.sampled_from(
    [*("<s>", "</s>", "<unk>", "<|user|>", "<think>", "  ", "Word", "<Ñ>", "<N\u0303>", "<left>", " <left>"),
     *("<right> ", "\n", " the", "123", "世界", "👩‍👧", "<0x0A>", "▁", "'s", "\u00a0", "\r\n")]
)  # fmt: skip
RANDOM = st.lists(
    st.one_of(st.text(st.characters(exclude_categories=("Cs",)), max_size=8), WORDS), max_size=8
)


def check(ours: Tokenizer, theirs: Library, text: str) -> None:
    for add in (True, False):
        ids = theirs.encode(text, add_special_tokens=add).ids
        assert ours.encode(text, add_special_tokens=add) == ids
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip, text_start=True) == theirs.decode(
            ids, skip_special_tokens=skip
        )


@pytest.mark.parametrize("text", [*TEXTS, "a<think> b <left> c <right>  d Word Words <N\u0303>"])
def test_texts(text: str, pair: tuple[Tokenizer, Library]) -> None:
    check(*pair, text)


@settings(max_examples=60, deadline=None)  # for each of nine tokenizers
@given(text=RANDOM.map("".join))
def test_random_texts(text: str, pair: tuple[Tokenizer, Library]) -> None:
    check(*pair, text)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_pieces_join_to_the_whole(data: st.DataObject, skip: bool, pair: tuple[Tokenizer, Library]) -> None:
    tokenizer, _ = pair
    of_text = RANDOM.map(lambda words: tokenizer.encode("".join(words)))
    chunks = data.draw(
        st.lists(st.one_of(st.lists(st.integers(0, SIZE - 1), max_size=4), of_text), max_size=6)
    )
    ids = [id for chunk in chunks for id in chunk]
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    shown, at = "", 0
    while at < len(ids):
        step = data.draw(st.integers(1, 4))
        shown += detokenizer.push(ids[at : at + step])
        at += step
        assert whole.startswith(shown)
    assert shown + detokenizer.flush() == whole


def test_a_character_of_several_tokens_is_shown_once_complete(pair: tuple[Tokenizer, Library]) -> None:
    tokenizer, _ = pair
    ids = tokenizer.encode("𓀀", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = [detokenizer.push([id]) for id in ids]
    if len(ids) >= 4:  # bytes; other tokenizers do not know it
        assert "".join(shown).strip() == "𓀀"
    assert all("\ufffd" not in text for text in shown)


def test_properties(pair: tuple[Tokenizer, Library]) -> None:
    ours, theirs = pair
    assert ours.vocab_size == SIZE
    assert ours.bos_token_id == 0
    assert ours.eos_token_ids == (1, 4)  # </s> and <|end|>
    around = theirs.encode("").ids
    assert (ours.add_bos, ours.add_eos) == (0 in around, 1 in around)
    assert ours.longest_token == max(map(len, theirs.get_vocab()))
    assert ours.is_special(3)
    assert not ours.is_special(theirs.token_to_id("<think>"))
    assert ours.token_to_id("<left>") == theirs.token_to_id("<left>")
    assert ours.token_to_id("no such token") is None
    # Rows of the embedding that no token has, which a model may still produce.
    assert ours.token_bytes(SIZE - 1) == b""
    assert ours.id_to_token(SIZE - 1) == ""
    for id in (-1, SIZE):
        with pytest.raises(InvalidRequest, match=f"Token id {id} is not in the vocabulary of {SIZE}"):
            ours.token_bytes(id)


def test_special_tokens_are_text_unless_parsed(pair: tuple[Tokenizer, Library]) -> None:
    ours, theirs = pair
    plain = Library.from_str(theirs.to_str())
    plain.encode_special_tokens = True
    assert 3 in ours.encode("<|user|>", add_special_tokens=False)
    ids = ours.encode("<|user|><think>", add_special_tokens=False, parse_special=False)
    assert ids == plain.encode("<|user|><think>", add_special_tokens=False).ids
    assert 3 not in ids or isinstance(theirs.model, Unigram)  # where it is a piece like others
    assert ids[-1] == ours.token_to_id("<think>")  # a word of the vocabulary's makers, not a mark


def test_lone_surrogates_become_replacement_characters(pair: tuple[Tokenizer, Library]) -> None:
    ours, _ = pair
    assert ours.encode("a\ud800b") == ours.encode("a\ufffdb")


def test_long_texts(pair: tuple[Tokenizer, Library]) -> None:
    text = "".join(TEXTS) * 20
    check(*pair, text)


# --- added tokens of the settings ---------------------------------------------------------------------------

DECODER = {
    "0": {"content": "<s>", "special": True},
    "1": {"content": "</s>", "special": True},
    "4": {"content": "<|end|>", "special": False},
    "990": {"content": "<|extra|>", "special": True, "normalized": False},
    "991": {"content": "<|word|>", "special": False, "rstrip": True},
}


@pytest.mark.oracle
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"added_tokens_decoder": DECODER},
        {"pad_token": "<pad>", "additional_special_tokens": ["<a>", "<b>"]},
    ],
    ids=["plain", "decoder", "named"],
)
def test_folders_equal_transformers(family: str, values: dict, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = write_tokenizer(tmp_path, family, **values)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    ours = opened(path)
    assert (ours.bos_token_id, ours.eos_token_ids[0]) == (theirs.bos_token_id, theirs.eos_token_id)
    for text in [*TEXTS, "x<|extra|> y <|word|>  z<pad><a> <b>", "<|end|>"]:
        for add in (True, False):
            ids = theirs.encode(text, add_special_tokens=add)
            assert ours.encode(text, add_special_tokens=add) == ids, text
        for skip in (True, False):
            shown = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip, text_start=True) == shown


def test_a_token_beyond_the_embedding_is_refused_where_it_is_used(tmp_path: Path) -> None:
    count = Library.from_str(trained("qwen2")).get_vocab_size()
    path = write_tokenizer(tmp_path, "qwen2")
    ours = opened(path, size=count - 1)
    assert ours.encode("abc")
    with pytest.raises(InvalidRequest, match=r"contains '<right>', which this model does not know"):
        ours.encode("abc<right>")
    assert ours.token_to_id("<right>") is None


# --- damaged and hostile files ------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        opened(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@lru_cache(maxsize=1)
def plain() -> dict:
    value: dict = json.loads(trained("qwen2"))
    return value


def changed(path: Path, **parts: object) -> Path:
    write_tokenizer(path, "qwen2")
    value = {**plain(), **parts}
    (path / "tokenizer.json").write_text(json.dumps(value))
    return path


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "parts",
    [
        {"model": None},
        {"model": {"type": "Nothing"}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"], ["ab", "a"]]}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}},
        {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}},
        {"model": {"type": "Unigram", "vocab": [], "unk_id": 3}},
        {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "("}}},
        {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "(" * 100_000}}},
        {"pre_tokenizer": {"type": "NoSuch"}},
        {"decoder": {"type": "NoSuch"}},
        {"decoder": {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}},
        {"added_tokens": [{"id": 1}]},
        {"added_tokens": [{"id": -1, "content": "x"}]},
        {"added_tokens": 7},
    ],
    ids=lambda parts: json.dumps(parts)[:50],
)  # fmt: skip
def test_tokenizers_that_make_no_sense(parts: dict, tmp_path: Path) -> None:
    refused(changed(tmp_path, **parts))


def test_more_tokens_than_the_model_has(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path, "qwen2")
    count = Library.from_str(trained("qwen2")).get_vocab_size(with_added_tokens=False)
    with pytest.raises(
        ModelFileError, match=f"the tokenizer has {count} tokens, but the model only {count - 1}"
    ):
        opened(path, size=count - 1)


@pytest.mark.parametrize("cut", [0, 1, 100, 5000, -2])
def test_cut_files(cut: int, tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path, "llama3")
    file = path / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:cut])
    refused(path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_flipped_bytes(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever stands in the files: a tokenizer that works somehow, or one line that says why there is none."""
    path = write_tokenizer(tmp_path_factory.mktemp("flipped"), data.draw(st.sampled_from(sorted(FAMILIES))))
    file = path / data.draw(st.sampled_from(["tokenizer.json", "tokenizer.json", "tokenizer_config.json"]))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    assert_works_or_says_why(lambda: opened(path), (TEXTS[1], TEXTS[3]))


def test_vocabularies_are_only_read_when_asked_for(tmp_path: Path) -> None:
    source = read_folder_tokenizer(write_tokenizer(tmp_path, "qwen2"), vocab_size=SIZE)
    (tmp_path / "tokenizer.json").unlink()
    assert source.eos_token_id == 1
    assert end_token_ids(source) == (1, 4)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        len(source.tokens)


def test_vocabularies_of_folders_compare(tmp_path: Path) -> None:
    def tokens(name: str, family: str, size: int = SIZE) -> object:
        return read_folder_tokenizer(write_tokenizer(tmp_path / name, family), vocab_size=size).tokens

    assert tokens("a", "qwen2") == tokens("b", "qwen2")
    assert tokens("a", "qwen2") != tokens("b", "llama3")
    assert tokens("a", "qwen2") != tokens("b", "qwen2", SIZE + 1)
    assert list(tokens("a", "qwen2")) == tokens("b", "qwen2")  # type: ignore[call-overload]
