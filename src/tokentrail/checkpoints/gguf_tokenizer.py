"""GGUF's tokenizer keys → `TokenizerSource`, uninterpreted but checked for consistency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrail.checkpoints.errors import CONVERT_AGAIN, file_error
from tokentrail.checkpoints.metadata import Metadata
from tokentrail.checkpoints.model import TokenizerSource

END_OF_TURN_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<turn|>",
        "<|return|>",
        "<|call|>",
    }
)
"""Tokens by which well-known chat formats end a turn. Many files name only one of theirs as eos."""
HARMONY_ENDS = frozenset({"<|return|>", "<|call|>"})
"""Of gpt-oss."""

_PREFIX = "tokenizer.ggml."


def read_tokenizer(metadata: Metadata) -> TokenizerSource:
    """Raises `ModelFileError` where the vocabulary is missing or its arrays and ids do not fit together."""
    tokens = metadata.texts(_PREFIX + "tokens", required=True)
    if not tokens:
        raise file_error(metadata.path, "the vocabulary is empty", CONVERT_AGAIN)
    size = len(tokens)
    token_types = metadata.array(_PREFIX + "token_type", "i", size)
    if token_types is not None and not ((token_types >= 0) & (token_types <= 6)).all():
        metadata.fail(_PREFIX + "token_type", "an array of token types from 0 to 6")
    scores = metadata.array(_PREFIX + "scores", "f", size)
    if scores is not None and np.isnan(scores).any():
        metadata.fail(_PREFIX + "scores", "an array of numbers, none of them NaN")

    def token_id(name: str) -> int | None:
        key = f"{_PREFIX}{name}_token_id"
        return metadata.integer(key, low=0, high=size - 1) if key in metadata else None

    return TokenizerSource(
        kind=metadata.text(_PREFIX + "model"),
        pre=metadata.text(_PREFIX + "pre", default=""),
        tokens=tokens,
        scores=None if scores is None else scores.astype(np.float32),
        token_types=None if token_types is None else token_types.astype(np.int32),
        merges=metadata.texts(_PREFIX + "merges"),
        bos_token_id=token_id("bos"),
        eos_token_id=token_id("eos"),
        eot_token_id=token_id("eot"),
        unk_token_id=token_id("unknown"),
        pad_token_id=_padding_id(metadata, size),
        add_bos=metadata.boolean(_PREFIX + "add_bos_token"),
        add_eos=metadata.boolean(_PREFIX + "add_eos_token"),
        add_space_prefix=metadata.boolean(_PREFIX + "add_space_prefix"),
        remove_extra_whitespaces=bool(metadata.boolean(_PREFIX + "remove_extra_whitespaces")),
        charsmap=_charsmap(metadata),
        rstrip=_rstrip(metadata, tokens, token_types),
        infill_token_ids=_infill_ids(metadata, size),
    )


def _infill_ids(metadata: Metadata, size: int) -> dict[str, int]:
    """By their newer keys or their older ones; ids beyond the vocabulary count as none."""
    found: dict[str, int] = {}
    for name in ("prefix", "suffix", "middle"):
        for key in (f"fim_{name[:3]}_token_id", f"{name}_token_id"):
            value = metadata.values.get(_PREFIX + key)
            if type(value) is int and 0 <= value < size:
                found.setdefault(name, value)
    return found


def _rstrip(metadata: Metadata, tokens: Sequence[str], types: npt.NDArray[Any] | None) -> tuple[int, ...]:
    """Special tokens that take white space along: Phi-3's, known by the model's name, as GGUF has no place for it."""
    name = metadata.text("general.name", default="").lower()
    if types is None or not ("phi-3" in name or "phi3" in name):
        return ()
    special = np.flatnonzero(np.isin(types, (2, 3, 4))).tolist()
    return tuple(id for id in special if tokens[id] not in ("<unk>", "<s>", "<|endoftext|>"))


def _charsmap(metadata: Metadata) -> bytes:
    key = _PREFIX + "precompiled_charsmap"
    value = metadata.values.get(key)
    if value is None:
        return b""
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int8, np.uint8):
        metadata.fail(key, "an array of bytes")
    return value.tobytes()


def _padding_id(metadata: Metadata, size: int) -> int | None:
    """Nothing is padded here, and files with an id beyond the vocabulary (or -1) are common: then None."""
    value = metadata.values.get(_PREFIX + "padding_token_id")
    return value if type(value) is int and 0 <= value < size else None


def end_token_ids(source: TokenizerSource, declared: Iterable[int] = ()) -> tuple[int, ...]:
    """All tokens that end an answer, ascending: eos, eot, those known to end a turn, and the `declared` ones, which
    a model's settings name (eos_token_id in generation_config.json)."""
    if source.files:  # the whole vocabulary is a large file, and such tokens are added ones
        named = {token.text: token.id for token in source.added_tokens if token.id is not None}
    else:
        named = {text: id for id, text in enumerate(source.tokens) if text in END_OF_TURN_TEXTS}
    ids = {id for text, id in named.items() if text in END_OF_TURN_TEXTS}
    if named.keys() >= HARMONY_ENDS:
        # There <|end|> ends one of several messages of an answer.
        ids.discard(named.get("<|end|>", -1))
    ids.update(id for id in (source.eos_token_id, source.eot_token_id) if id is not None)
    ids.update(declared)
    return tuple(sorted(ids))
