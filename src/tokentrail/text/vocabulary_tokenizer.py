"""Tokenizers made of the lists that GGUF files hold: texts, types, scores or merges, and the name of a rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from tokentrail.checkpoints import TokenizerSource, end_token_ids
from tokentrail.protocol import ModelFileError
from tokentrail.text.byte_level import ByteLevelBPE, decode_byte_level
from tokentrail.text.character_bpe import CharacterBPE
from tokentrail.text.normalization import Normalizer
from tokentrail.text.pretokenizers import PRE_TOKENIZERS
from tokentrail.text.sentencepiece_bpe import SPACE, SentencePieceBPE
from tokentrail.text.special_tokens import SpecialTokenSplitter
from tokentrail.text.tokenizer import Tokenizer
from tokentrail.text.unicode import without_surrogates
from tokentrail.text.unigram import Unigram

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""GGUF's token types."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class _Model(Protocol):
    def encode(self, text: str) -> list[int]: ...


class VocabularyTokenizer(Tokenizer):
    """Ids equal llama.cpp's on the same file, with one deliberate exception: ordinary text never becomes a control
    token by way of merges, only where special tokens are parsed.
    """

    def __init__(
        self,
        source: TokenizerSource,
        *,
        eos_token_ids: Sequence[int] | None = None,
        origin: str = "the model's tokenizer",
    ) -> None:
        """`origin` names the file in errors. Raises `ModelFileError` for a tokenizer that cannot be built."""
        super().__init__(len(source.tokens))
        self._tokens = source.tokens
        self._types = _token_types(source)
        self._ids = {text or f"[EMPTY_{id}]": id for id, text in enumerate(source.tokens)}
        if len(self._ids) != self.vocab_size:
            text = next(text for id, text in enumerate(source.tokens) if self._ids.get(text, id) != id)
            raise ModelFileError(f"{origin}: the token {text!r:.80} is there twice. Convert the model again.")
        self.eos_token_ids = tuple(end_token_ids(source) if eos_token_ids is None else eos_token_ids)
        self.bos_token_id = source.bos_token_id

        types = self._types
        # Nearly all tokens are ordinary ones.
        named = {id: self._tokens[id] or f"[EMPTY_{id}]" for id, kind in enumerate(types) if kind != NORMAL}
        special = {t: i for i, t in named.items() if types[i] in (UNKNOWN, CONTROL, USER_DEFINED)}
        own = {t: i for t, i in special.items() if types[i] == USER_DEFINED}
        self._words = SpecialTokenSplitter(own)
        self._inline_words = source.like_sentencepiece
        if source.like_sentencepiece:
            special = {t: i for t, i in special.items() if t not in own}
            own = {}
        self._all_special = SpecialTokenSplitter(special, source.rstrip)
        self._user_defined = SpecialTokenSplitter(own, source.rstrip)

        self._normalize = Normalizer(source, origin)
        self._eos_token_id = source.eos_token_id
        self._space_prefix = False
        self._prefix_again = not source.prefix_once
        """Whether the space comes before a text that follows a special token, too …"""
        self._prefix_everywhere = False
        """… and before all others."""
        self._byte_level = False
        self._model: _Model
        bos = eos = False
        if source.kind in ("gpt2", "gemma4"):
            bos = self._build_bpe(source, origin)
        elif source.kind == "llama":
            bos = self._build_sentencepiece(source)
        elif source.kind == "t5":
            eos = self._build_unigram(source, origin)
        else:
            raise ModelFileError(
                f"{origin}: tokenizer model {source.kind!r:.80} is not supported (gpt2, gemma4, llama and t5 are). "
                "Use a model with one of these."
            )
        self.add_bos = bos if source.add_bos is None else source.add_bos
        self.add_eos = eos if source.add_eos is None else source.add_eos
        if self.add_bos and self.bos_token_id is None:
            raise ModelFileError(
                f"{origin}: prompts start with a beginning-of-sequence token, but its id is missing. "
                "Convert the model again."
            )
        if self.add_eos and self._eos_token_id is None:
            raise ModelFileError(
                f"{origin}: prompts end with an end-of-sequence token, but its id is missing. "
                "Convert the model again."
            )

    @cached_property
    def longest_token(self) -> int:
        return max(map(len, self._tokens), default=0)

    def _build_bpe(self, source: TokenizerSource, origin: str) -> bool:
        pre = "gemma4" if source.kind == "gemma4" else source.pre
        rule = PRE_TOKENIZERS.get(pre)
        if rule is None:
            known = ", ".join(sorted(filter(None, PRE_TOKENIZERS)))
            raise ModelFileError(
                f"{origin}: pre-tokenizer {source.pre!r:.80} is not known. "
                f"Use a newer version of Tokentrail, or a model with one of: {known}."
            )
        if not source.merges:
            raise ModelFileError(f"{origin}: the tokenizer's merges are missing. Convert the model again.")
        vocabulary = self._ids.copy()
        for text, id in self._all_special.ids.items():
            if self._types[id] != USER_DEFINED:
                del vocabulary[text]
        self._byte_level = rule.byte_level
        self._model = (ByteLevelBPE if rule.byte_level else CharacterBPE)(vocabulary, source.merges, rule)
        return rule.add_bos

    def _build_sentencepiece(self, source: TokenizerSource) -> bool:
        types, never = self._types, [CONTROL, UNKNOWN, BYTE]
        if self._inline_words:
            never.append(USER_DEFINED)
        vocabulary = {t: i for t, i in self._ids.items() if types[i] not in never}
        # SentencePiece's own default ids, which some files leave out.
        unknown = 0 if source.unk_token_id is None else source.unk_token_id
        if self.bos_token_id is None and self.vocab_size > 1:
            self.bos_token_id = 1
        self._model = SentencePieceBPE(
            vocabulary, self._scores(source), self._byte_ids(), unknown, fuse_unknown=self._inline_words
        )
        self._space_prefix = source.add_space_prefix is not False
        return True

    def _build_unigram(self, source: TokenizerSource, origin: str) -> bool:
        types = self._types
        matched = [NORMAL, UNUSED] if self._inline_words else [NORMAL, UNUSED, USER_DEFINED]
        byte_ids = self._byte_ids() if self._inline_words and BYTE in types else None
        pieces = [text if kind in matched else None for text, kind in zip(self._tokens, types, strict=True)]
        scores = [
            score if kind == NORMAL else 0.0 for score, kind in zip(self._scores(source), types, strict=True)
        ]
        # T5's own default ids, which some files leave out.
        unknown = min(2, self.vocab_size - 1) if source.unk_token_id is None else source.unk_token_id
        if self._eos_token_id is None and self.vocab_size > 1:
            self._eos_token_id = 1
        self._model = Unigram(pieces, scores, unknown, byte_ids, origin)
        self._space_prefix = self._prefix_everywhere = source.add_space_prefix is True
        return True

    def _byte_ids(self) -> list[int | None]:
        return [self._ids.get(f"<0x{byte:02X}>") for byte in range(256)]

    def _scores(self, source: TokenizerSource) -> list[float]:
        return [0.0] * self.vocab_size if source.scores is None else source.scores.tolist()

    # --- text → ids ----------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        text = without_surrogates(text)
        ids: list[int] = []
        if add_special_tokens and self.add_bos and self.bos_token_id is not None:
            ids.append(self.bos_token_id)
        prefix = self._space_prefix
        splitter = self._all_special if parse_special else self._user_defined
        for piece in splitter.split(text):
            if isinstance(piece, int):
                ids.append(piece)
                prefix = self._space_prefix and self._prefix_again
            else:
                ids += (
                    self._among_words(piece, prefix) if self._inline_words else self._ordinary(piece, prefix)
                )
                prefix = self._prefix_everywhere
        if add_special_tokens and self.add_eos and self._eos_token_id is not None:
            ids.append(self._eos_token_id)
        return ids

    def _ordinary(self, text: str, prefix: bool) -> list[int]:
        text = self._normalize(text)
        if self._prefix_everywhere and not text.strip(" "):
            prefix = False  # T5's comes before a word
        return self._model.encode(" " + text if prefix else text) if text else []

    def _among_words(self, text: str, prefix: bool) -> list[int]:
        """The same for text in which user-defined tokens may stand."""
        pieces = self._normalize.among_tokens(self._words.split(text))
        if prefix and pieces:
            pieces = [" " + pieces[0], *pieces[1:]] if isinstance(pieces[0], str) else [" ", *pieces]
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._model.encode(piece)
        return ids

    # --- ids → text ----------------------------------------------------------------------------------

    def _token_bytes(self, id: int) -> bytes:
        text, kind = self._tokens[id], self._types[id]
        if kind == NORMAL:
            return decode_byte_level(text) if self._byte_level else text.replace(SPACE, " ").encode("utf-8")
        if kind == BYTE:
            match = _BYTE_TOKEN.fullmatch(text)
            return bytes.fromhex(match.group(1)) if match else text.encode("utf-8")
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            return text.encode("utf-8")
        return b""

    def _brings_space(self, id: int) -> bool:
        # Only an ordinary token does; the spaces of user-defined tokens were in the text itself.
        return self._space_prefix and self._types[id] == NORMAL

    def id_to_token(self, id: int) -> str:
        self._check(id)
        return self._tokens[id]

    def token_to_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def is_special(self, id: int) -> bool:
        self._check(id)
        return self._types[id] in (UNKNOWN, CONTROL)


def _token_types(source: TokenizerSource) -> list[int]:
    """A type for every token. Tokens that begin or end texts are control tokens, whatever the file says."""
    types = [NORMAL] * len(source.tokens) if source.token_types is None else source.token_types.tolist()
    for id in (source.bos_token_id, *end_token_ids(source)):
        if id is not None and types[id] != CONTROL:
            types[id] = CONTROL
    if source.token_types is None and source.kind == "llama":
        for id, text in enumerate(source.tokens):
            if _BYTE_TOKEN.fullmatch(text):
                types[id] = BYTE
    return types
