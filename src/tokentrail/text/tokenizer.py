"""Text ↔ token ids: what all tokenizers have in common, and which one a checkpoint needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from tokentrail.checkpoints import Checkpoint
from tokentrail.protocol import InvalidRequest


class Tokenizer(ABC):
    """Encodes and decodes. Immutable once built, and safe to use from several threads.

    Each token stands for bytes, whatever stands before it: a text is its tokens' bytes joined, so it can be shown
    token by token. (`IncrementalDetokenizer` does that without showing half a character.)
    """

    vocab_size: int
    """Ids from 0 up to this one may stand in prompts and answers."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Every token that ends an answer, ascending."""
    add_bos: bool
    add_eos: bool

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._bytes: list[bytes | None] = [None] * vocab_size

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Tokenizer:
        """Raises `ModelFileError` for a tokenizer that cannot be built."""
        from tokentrail.text.building import build_tokenizer

        return build_tokenizer(
            checkpoint.tokenizer,
            vocab_size=checkpoint.config.vocab_size,
            eos_token_ids=checkpoint.eos_token_ids,
            origin=str(checkpoint.path),
        )

    @property
    @abstractmethod
    def longest_token(self) -> int:
        """Characters of the vocabulary's longest entry: no token stands for more of a text."""

    # --- text → ids ----------------------------------------------------------------------------------

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens`: put the beginning (and end) token around it where the model asks for them.
        `parse_special`: the texts of control tokens become those tokens; otherwise they are ordinary text.
        Tokens that the vocabulary's makers defined as words (user-defined) are found either way.
        Lone surrogates, which are no characters, count as U+FFFD.
        """

    # --- ids → text ----------------------------------------------------------------------------------

    @abstractmethod
    def _token_bytes(self, id: int) -> bytes: ...

    @abstractmethod
    def _brings_space(self, id: int) -> bool:
        """Whether this token, as the first of a text, has a space before it that was not in the text."""

    @abstractmethod
    def id_to_token(self, id: int) -> str:
        """The vocabulary's own writing of a token (`Ġthe`, `▁the`, `<|im_end|>`)."""

    @abstractmethod
    def token_to_id(self, token: str) -> int | None: ...

    @abstractmethod
    def is_special(self, id: int) -> bool:
        """Whether a token is a mark for the model (control, unknown) rather than text."""

    def decode(
        self, ids: Iterable[int], *, skip_special_tokens: bool = True, text_start: bool = False
    ) -> str:
        """The text of `ids`. Bytes that are not valid UTF-8 become U+FFFD.

        `text_start`: the ids begin a text (rather than continue a prompt, as answers do), so the space that
        SentencePiece puts before the first word is taken off again.
        """
        ids = list(ids)
        text = self.decode_bytes(ids, skip_special_tokens=skip_special_tokens).decode("utf-8", "replace")
        if text_start and text.startswith(" "):
            first = next((id for id in ids if not (skip_special_tokens and self.is_special(id))), None)
            return text[1:] if first is not None and self._brings_space(first) else text
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

    def _check(self, id: int) -> None:
        if not 0 <= id < self.vocab_size:
            raise InvalidRequest(f"Token id {id} is not in the vocabulary of {self.vocab_size} tokens.")
