"""Text ↔ token ids, built from what a checkpoint says about its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from tokentrail.checkpoints import Checkpoint, TokenizerSource, end_token_ids
from tokentrail.protocol import InvalidRequest, ModelFileError
from tokentrail.text.byte_level import ByteLevelBPE, decode_byte_level
from tokentrail.text.pretokenizers import PRE_TOKENIZERS
from tokentrail.text.sentencepiece_bpe import SPACE, SentencePieceBPE
from tokentrail.text.special_tokens import SpecialTokenSplitter

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""GGUF's token types."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SURROGATES = re.compile("[\ud800-\udfff]")


class _Model(Protocol):
    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """Encodes and decodes. Immutable once built, and safe to use from several threads.

    Ids equal llama.cpp's on the same file, with one deliberate exception: ordinary text never becomes a
    control token by way of merges, only where special tokens are parsed.
    """

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Every token that ends an answer, ascending."""
    longest_token: int
    """Characters of the vocabulary's longest entry: no token stands for more of a text."""
    add_bos: bool
    add_eos: bool

    def __init__(
        self,
        source: TokenizerSource,
        *,
        eos_token_ids: Sequence[int] | None = None,
        origin: str = "the model's tokenizer",
    ) -> None:
        """`origin` names the file in errors. Raises `ModelFileError` for a tokenizer that cannot be built."""
        self._tokens = source.tokens
        self.vocab_size = len(source.tokens)
        self.longest_token = max(map(len, source.tokens), default=0)
        self._types = _token_types(source)
        self._ids = {text or f"[EMPTY_{id}]": id for id, text in enumerate(source.tokens)}
        if len(self._ids) != self.vocab_size:
            text = next(text for id, text in enumerate(source.tokens) if self._ids.get(text, id) != id)
            raise ModelFileError(f"{origin}: the token {text!r:.80} is there twice. Convert the model again.")
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self.eos_token_ids = tuple(end_token_ids(source) if eos_token_ids is None else eos_token_ids)
        self.bos_token_id = source.bos_token_id

        types = self._types
        special = {t: i for t, i in self._ids.items() if types[i] in (UNKNOWN, CONTROL, USER_DEFINED)}
        own = {t: i for t, i in special.items() if types[i] == USER_DEFINED}
        self._all_special, self._user_defined = SpecialTokenSplitter(special), SpecialTokenSplitter(own)

        self._space_prefix = False
        self._byte_level = source.kind == "gpt2"
        self._model: _Model
        if source.kind == "gpt2":
            default_bos = self._build_byte_level(source, origin)
        elif source.kind == "llama":
            default_bos = self._build_sentencepiece(source, origin)
        else:
            raise ModelFileError(
                f"{origin}: tokenizer model {source.kind!r:.80} is not supported (gpt2 and llama are). "
                "Use a model with one of these."
            )
        self.add_bos = default_bos if source.add_bos is None else source.add_bos
        self.add_eos = bool(source.add_eos)
        self._eos_token_id = source.eos_token_id
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

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Tokenizer:
        return cls(checkpoint.tokenizer, eos_token_ids=checkpoint.eos_token_ids, origin=str(checkpoint.path))

    def _build_byte_level(self, source: TokenizerSource, origin: str) -> bool:
        rule = PRE_TOKENIZERS.get(source.pre)
        if rule is None:
            known = ", ".join(sorted(filter(None, PRE_TOKENIZERS)))
            raise ModelFileError(
                f"{origin}: pre-tokenizer {source.pre!r:.80} is not known. "
                f"Use a newer version of Tokentrail, or a model with one of: {known}."
            )
        if not source.merges:
            raise ModelFileError(f"{origin}: the tokenizer's merges are missing. Convert the model again.")
        types = self._types
        vocabulary = {text: id for text, id in self._ids.items() if types[id] not in (CONTROL, UNKNOWN)}
        self._model = ByteLevelBPE(vocabulary, source.merges, rule)
        return rule.add_bos

    def _build_sentencepiece(self, source: TokenizerSource, origin: str) -> bool:
        types = self._types
        vocabulary = {t: i for t, i in self._ids.items() if types[i] not in (CONTROL, UNKNOWN, BYTE)}
        scores = [0.0] * self.vocab_size if source.scores is None else source.scores.tolist()
        byte_ids = [self._ids.get(f"<0x{byte:02X}>") for byte in range(256)]
        # SentencePiece's own default ids, which some files leave out.
        unknown = 0 if source.unk_token_id is None else source.unk_token_id
        if self.bos_token_id is None and self.vocab_size > 1:
            self.bos_token_id = 1
        self._model = SentencePieceBPE(vocabulary, scores, byte_ids, unknown)
        self._space_prefix = source.add_space_prefix is not False
        return True

    # --- text → ids ----------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens`: put the beginning (and end) token around it where the model asks for them.
        `parse_special`: the texts of control tokens become those tokens; otherwise they are ordinary text.
        Tokens that the vocabulary's makers defined as words (user-defined) are found either way.
        Lone surrogates, which are no characters, count as U+FFFD.
        """
        if _SURROGATES.search(text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = []
        if add_special_tokens and self.add_bos and self.bos_token_id is not None:
            ids.append(self.bos_token_id)
        prefix = self._space_prefix
        splitter = self._all_special if parse_special else self._user_defined
        for piece in splitter.split(text):
            if isinstance(piece, int):
                ids.append(piece)
                prefix = self._space_prefix
            else:
                ids += self._model.encode(" " + piece if prefix else piece)
                prefix = False
        if add_special_tokens and self.add_eos and self._eos_token_id is not None:
            ids.append(self._eos_token_id)
        return ids

    # --- ids → text ----------------------------------------------------------------------------------

    def decode(
        self, ids: Iterable[int], *, skip_special_tokens: bool = True, text_start: bool = False
    ) -> str:
        """The text of `ids`. Bytes that are not valid UTF-8 become U+FFFD.

        `text_start`: the ids begin a text (rather than continue a prompt, as answers do), so the space that
        SentencePiece puts before the first word is taken off again.
        """
        ids = list(ids)
        text = self.decode_bytes(ids, skip_special_tokens=skip_special_tokens).decode("utf-8", "replace")
        if text_start and self._space_prefix and text.startswith(" "):
            # Only an ordinary token brings that space; those of user-defined tokens were in the text itself.
            first = next((self._types[id] for id in ids if not self.is_special(id)), None)
            return text[1:] if first == NORMAL else text
        return text

    def decode_bytes(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> bytes:
        """The bytes of `ids`, joined: what `decode` decodes."""
        if skip_special_tokens:
            return b"".join([self.token_bytes(id) for id in ids if not self.is_special(id)])
        return b"".join([self.token_bytes(id) for id in ids])

    def token_bytes(self, id: int) -> bytes:
        """The bytes one token stands for: its own text for a special token, nothing for an unused one."""
        self._check(id)
        data = self._bytes[id]
        if data is None:
            data = self._bytes[id] = self._token_bytes(id)
        return data

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

    def id_to_token(self, id: int) -> str:
        """The vocabulary's own writing of a token (`Ġthe`, `▁the`, `<|im_end|>`)."""
        self._check(id)
        return self._tokens[id]

    def token_to_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def is_special(self, id: int) -> bool:
        """Whether a token is a mark for the model (control, unknown) rather than text."""
        self._check(id)
        return self._types[id] in (UNKNOWN, CONTROL)

    def _check(self, id: int) -> None:
        if not 0 <= id < self.vocab_size:
            raise InvalidRequest(f"Token id {id} is not in the vocabulary of {self.vocab_size} tokens.")


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
