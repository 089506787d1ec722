"""Incremental detokenization equals decoding everything at once, however the tokens arrive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrail.checkpoints import TokenizerSource
from tokentrail.text import IncrementalDetokenizer, Tokenizer, build_tokenizer
from tokentrail.text.byte_level import _byte_alphabet

ALPHABET = _byte_alphabet()
PIECES = ["hello", " world", "世", "界", "👍", "é"]
BYTE_LEVEL = build_tokenizer(
    TokenizerSource(
        kind="gpt2",
        pre="gpt-2",
        tokens=[
            *ALPHABET.values(),
            *("".join(ALPHABET[byte] for byte in piece.encode()) for piece in PIECES),
            ALPHABET[0xE4] + ALPHABET[0xB8],
            "<|im_end|>",
            "<think>",
        ],
        token_types=np.array([1] * (256 + len(PIECES) + 1) + [3, 4], np.int32),
        merges=["Ġ w"],
    )
)
SENTENCEPIECE = build_tokenizer(
    TokenizerSource(
        kind="llama",
        tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁a", "世", "👍", "▁"],
        token_types=np.array([2, 3, 3] + [6] * 256 + [1] * 4, np.int32),
        bos_token_id=1,
    )
)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_whole(tokenizer: Tokenizer, skip: bool, data: st.DataObject) -> None:
    random_ids = st.integers(0, tokenizer.vocab_size - 1)
    # Bytes of real characters, so that valid sequences are frequent too.
    characters = st.characters(exclude_categories=("Cs",)).map(
        lambda c: [b if tokenizer is BYTE_LEVEL else b + 3 for b in _byte_ids(tokenizer, c)]
    )
    chunks = data.draw(st.lists(st.one_of(random_ids.map(lambda id: [id]), characters), max_size=20))
    ids = [id for chunk in chunks for id in chunk]
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    shown, position = "", 0
    for step in [*data.draw(st.lists(st.integers(0, 4), max_size=40)), len(ids)]:
        shown += detokenizer.push(ids[position : position + step])
        position += step
        assert whole.startswith(shown)
    assert shown + detokenizer.flush() == whole


def _byte_ids(tokenizer: Tokenizer, character: str) -> list[int]:
    if tokenizer is SENTENCEPIECE:
        return list(character.encode())
    order = {byte: index for index, byte in enumerate(ALPHABET)}
    return [order[byte] for byte in character.encode()]


def byte_ids(data: bytes) -> list[int]:
    order = {byte: index for index, byte in enumerate(ALPHABET)}
    return [order[byte] for byte in data]


def test_half_characters_are_held_back() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    family = "👩‍👧"
    shown = [detokenizer.push([id]) for id in byte_ids(family.encode())]
    assert "".join(shown) == family
    assert all("\ufffd" not in text for text in shown)
    assert shown[:3] == ["", "", ""]
    assert detokenizer.flush() == ""


def test_a_character_may_span_a_skipped_token() -> None:
    first, second, third = byte_ids("世".encode())
    end = BYTE_LEVEL.token_to_id("<|im_end|>")
    assert end is not None
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    assert detokenizer.push([first]) + detokenizer.push([second, end]) == ""
    assert detokenizer.push([third]) == "世"


def test_invalid_bytes_are_replaced_at_once_and_incomplete_ones_at_the_end() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    assert detokenizer.push(byte_ids(b"a\xff")) == "a\ufffd"
    assert detokenizer.push(byte_ids(b"\xe4\xb8")) == ""
    assert detokenizer.push(byte_ids(b"x")) == "\ufffdx"
    assert detokenizer.push(byte_ids(b"\xf0\x9f\x91")) == ""
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens() -> None:
    ids = [BYTE_LEVEL.token_to_id(text) for text in ("hello", "<|im_end|>", "<think>")]
    assert IncrementalDetokenizer(BYTE_LEVEL).push(ids) == "hello<think>"  # type: ignore[arg-type]
    shown = IncrementalDetokenizer(BYTE_LEVEL, skip_special_tokens=False).push(ids)  # type: ignore[arg-type]
    assert shown == "hello<|im_end|><think>"
