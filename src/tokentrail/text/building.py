"""From what a checkpoint says about its tokenizer to one that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tokentrail.checkpoints import (
    TokenizerSource,
    read_bpe_files,
    read_ranks,
    read_sentencepiece,
    read_tekken,
)
from tokentrail.checkpoints.sentencepiece import BPE
from tokentrail.protocol import ModelFileError
from tokentrail.text.byte_level import encode_byte_level
from tokentrail.text.library_tokenizer import LibraryTokenizer
from tokentrail.text.pretokenizers import PRE_TOKENIZERS
from tokentrail.text.sentencepiece_bpe import SPACE
from tokentrail.text.tokenizer import Tokenizer
from tokentrail.text.vocabulary_tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    VocabularyTokenizer,
)


def build_tokenizer(
    source: TokenizerSource,
    *,
    vocab_size: int | None = None,
    eos_token_ids: Sequence[int] | None = None,
    origin: str = "the model's tokenizer",
) -> Tokenizer:
    """`vocab_size`: rows of the model's embedding; `eos_token_ids`: what ends an answer; both follow from `source`
    if left out. `origin` names the file in errors. Raises `ModelFileError` for a tokenizer that cannot be built."""
    if source.kind == "tokenizer.json":
        return LibraryTokenizer(source, vocab_size=vocab_size, eos_token_ids=eos_token_ids, origin=origin)
    if source.kind == "none":
        raise ModelFileError(
            f"{origin}: there is no tokenizer: none of tokenizer.json, tokenizer.model, vocab.json with merges.txt, "
            "qwen.tiktoken, tekken.json. Download the model's tokenizer files into the folder, too."
        )
    if source.files:
        source = _as_lists(source, vocab_size, origin)
    return VocabularyTokenizer(source, eos_token_ids=eos_token_ids, origin=origin)


class _Lists:
    """Tokens by id, as a GGUF file would list them."""

    def __init__(self, tokens: list[str], types: list[int], scores: list[float] | None = None) -> None:
        self.tokens, self.types, self.scores = tokens, types, scores

    def extend(self, size: int) -> None:
        missing = size - len(self.tokens)
        if missing > 0:
            self.tokens += [""] * missing
            self.types += [UNUSED] * missing
            if self.scores is not None:
                self.scores += [0.0] * missing

    def add(self, source: TokenizerSource, limit: int | None) -> None:
        """The folder's added tokens: a text that is there already keeps its id. Those beyond `limit` are left out."""
        ids = {text: id for id, text in enumerate(self.tokens) if text}
        for token in source.added_tokens:
            id = ids.get(token.text, len(self.tokens) if token.id is None else token.id)
            if not token.text or id < 0 or (limit is not None and id >= limit):
                continue
            self.extend(id + 1)
            self.tokens[id] = token.text
            ids[token.text] = id
            self.types[id] = CONTROL if token.special else USER_DEFINED


def _as_lists(source: TokenizerSource, vocab_size: int | None, origin: str) -> TokenizerSource:
    path = next(iter(source.files.values()))
    if source.kind == "tokenizer.model":
        model = read_sentencepiece(path)
        pieces = [
            # SentencePiece looks for them where spaces are U+2581 already, and so never finds those with spaces.
            text.replace(SPACE, " ") if kind == USER_DEFINED and " " not in text else text
            for text, kind in zip(model.pieces, model.types, strict=True)
        ]
        types = [
            NORMAL
            if (kind == BYTE and not model.byte_fallback) or (kind == USER_DEFINED and " " in text)
            else kind
            for text, kind in zip(model.pieces, model.types, strict=True)
        ]
        lists = _Lists(pieces, types, list(model.scores))
        source = replace(
            source,
            kind="llama" if model.model_type == BPE else "t5",
            unk_token_id=_none_if_negative(model.unk_id),
            bos_token_id=_first(source.bos_token_id, _none_if_negative(model.bos_id)),
            eos_token_id=_first(source.eos_token_id, _none_if_negative(model.eos_id)),
            add_space_prefix=model.add_dummy_prefix and source.add_space_prefix is not False,
            remove_extra_whitespaces=model.remove_extra_whitespaces,
            charsmap=model.charsmap,
            like_sentencepiece=True,
        )
    elif source.kind == "vocab.json":
        ids, merges = read_bpe_files(source.files)
        lists = _Lists([], [])
        lists.extend(len(ids))
        for text, id in ids.items():
            lists.tokens[id], lists.types[id] = text, NORMAL
        source = replace(source, kind="gpt2", merges=merges, add_bos=bool(source.add_bos))
    elif source.kind == "tekken.json":
        tekken = read_tekken(path)
        if tekken.pattern not in PRE_TOKENIZERS[source.pre].patterns:
            raise ModelFileError(
                f"{origin}: tekken.json cuts words by a pattern that is not known. Use a tokenizer.json of the model."
            )
        words = [encode_byte_level(token) for token in sorted(tekken.ranks, key=tekken.ranks.__getitem__)]
        lists = _Lists([*tekken.special, *words], [CONTROL] * len(tekken.special) + [NORMAL] * len(words))
        source = replace(
            source, kind="gpt2", merges=_merges_of(tekken.ranks), add_bos=source.add_bos is not False
        )
    else:
        ranks = read_ranks(path)
        lists = _Lists([encode_byte_level(token) for token in sorted(ranks, key=ranks.__getitem__)], [])
        lists.types = [NORMAL] * len(lists.tokens)
        source = replace(source, kind="gpt2", merges=_merges_of(ranks), add_bos=bool(source.add_bos))
    count = len(lists.tokens)
    if vocab_size is not None and count > vocab_size:
        raise ModelFileError(
            f"{origin}: the tokenizer has {count} tokens, but the model only {vocab_size}. "
            "Use the tokenizer that belongs to the model."
        )
    lists.add(source, vocab_size)
    lists.extend(vocab_size or 0)
    return replace(
        source,
        tokens=lists.tokens,
        token_types=np.array(lists.types, np.int32),
        scores=None if lists.scores is None else np.array(lists.scores, np.float32),
        files={},
    )


def _merges_of(ranks: Mapping[bytes, int]) -> list[str]:
    """Pairs to merge, first ones first, so that merging pairs gives what merging by rank of the result gives."""
    pairs: list[tuple[int, int, int]] = []
    find = ranks.get
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left = find(token[:cut])
            if left is not None:
                right = find(token[cut:])
                if right is not None:
                    pairs.append((rank, left, right))
    pairs.sort()
    texts = [""] * len(ranks)
    for token, rank in ranks.items():
        texts[rank] = encode_byte_level(token)
    return [f"{texts[left]} {texts[right]}" for _, left, right in pairs]


def _none_if_negative(id: int) -> int | None:
    return None if id < 0 else id


def _first(*ids: int | None) -> int | None:
    return next((id for id in ids if id is not None), None)
