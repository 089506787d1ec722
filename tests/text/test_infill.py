"""Prompts for the middle of a text, in the vocabularies of models that know how to fill it in."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_files import llama_tensors, write_model
from tokentrail.checkpoints import TokenizerSource, open_checkpoint
from tokentrail.text import Infill, Tokenizer, build_tokenizer
from tokentrail.text.byte_level import BYTE_TO_CHARACTER

BYTES = [BYTE_TO_CHARACTER[byte] for byte in range(256)]


def byte_level(*marks: str, **fields: object) -> tuple[Tokenizer, TokenizerSource]:
    """Bytes are tokens 0 … 255, the marks those behind them."""
    import numpy as np

    tokens = [*BYTES, *marks, "xy", "<end>"]
    types = np.array([1] * 256 + [3] * len(marks) + [1, 3], np.int32)
    source = TokenizerSource(
        kind="gpt2",
        pre="gpt-2",
        tokens=tokens,
        merges=["x y"],
        token_types=types,
        eos_token_id=len(tokens) - 1,
        **fields,  # type: ignore[arg-type]
    )
    return build_tokenizer(source, vocab_size=len(tokens), eos_token_ids=(len(tokens) - 1,)), source


@pytest.mark.parametrize(
    ("marks", "order"),
    [
        (("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"), "256 a 258 b 257"),
        (("<fim_prefix>", "<fim_middle>", "<fim_suffix>"), "256 a 258 b 257"),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), "256 a 257 b 258"),
        (("[PREFIX]", "[MIDDLE]", "[SUFFIX]"), "258 b 256 a"),
    ],
)
def test_marks_by_their_texts(marks: tuple[str, ...], order: str) -> None:
    infill = Infill.of(*(made := byte_level(*marks)))
    assert infill is not None
    ids = infill.encode("a", "b", made[0])
    wanted = [{"a": BYTES.index("a"), "b": BYTES.index("b")}.get(one) or int(one) for one in order.split()]
    assert ids == wanted
    assert infill.encode([7, 8], "b", made[0]) != ids


def test_marks_by_the_files_keys() -> None:
    tokenizer, source = byte_level(
        "<x>", "<y>", "<z>", infill_token_ids={"prefix": 256, "suffix": 258, "middle": 257}
    )
    infill = Infill.of(tokenizer, source)
    assert infill is not None
    assert infill.encode("a", "<x>", tokenizer)[:3] == [256, BYTES.index("a"), 258]
    assert 256 not in infill.encode("a", "<x>", tokenizer)[1:], "a mark that is written out is text"


def test_most_models_know_none() -> None:
    assert Infill.of(*byte_level("<|im_start|>", "<fim_prefix>")) is None


@pytest.mark.parametrize("newer", [True, False])
def test_keys_of_gguf(tmp_path: Path, newer: bool) -> None:
    tokens = [*BYTES, "<x>", "<y>", "<z>"]
    keys = ("fim_pre", "fim_suf", "fim_mid") if newer else ("prefix", "suffix", "middle")
    metadata: dict[str, object] = {f"tokenizer.ggml.{key}_token_id": 256 + at for at, key in enumerate(keys)}
    path = write_model(
        tmp_path / "model.gguf",
        tensors=llama_tensors(len(tokens), layers=1, tied=False),
        metadata={"llama.block_count": 1, **metadata},
        tokens=tokens,
        types=[1] * 256 + [3] * 3,
        merges=["a b"],
    )
    checkpoint = open_checkpoint(path)
    assert checkpoint.tokenizer.infill_token_ids == {"prefix": 256, "suffix": 257, "middle": 258}
    assert Infill.of(Tokenizer.from_checkpoint(checkpoint), checkpoint.tokenizer) is not None


def test_a_suffix_goes_on_without_a_space() -> None:
    """SentencePiece puts a space before a text's first word: right for the prefix, wrong behind a mark."""
    import numpy as np

    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "b", "▁a", "▁b"]
    tokens += ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"]
    types = [2, 3, 3, *[6] * 256, *[1] * 5, *[3] * 4]
    scores = [0.0] * 259 + [-9.0, -8.0, -7.0, -1.0, -2.0] + [0.0] * 4
    source = TokenizerSource(
        kind="llama",
        tokens=tokens,
        scores=np.array(scores, np.float32),
        token_types=np.array(types, np.int32),
        bos_token_id=1,
        eos_token_id=2,
        unk_token_id=0,
    )
    tokenizer = build_tokenizer(source, vocab_size=len(tokens), eos_token_ids=(2,))
    infill = Infill.of(tokenizer, source)
    assert infill is not None
    text = [tokenizer.id_to_token(id) for id in infill.encode("a", "b", tokenizer)]
    assert text == ["<s>", "▁<PRE>", "▁a", "▁<SUF>", "b", "▁<MID>"]
    assert infill.end_ids == (tokens.index("▁<EOT>"),)
