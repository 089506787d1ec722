"""Tokens of a text that goes on where another one stands."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrail.text.tokenizer import Tokenizer

_PROBE = "\x02"
"""A character that no merge joins with its neighbours."""


class ContinuedText:
    """Encodes texts without the space that SentencePiece puts before a text's first word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        adds_space = self._bytes(self.plain("x")) != b"x"
        self._prefix = self.plain(_PROBE) if adds_space else []

    def plain(self, text: str) -> list[int]:
        """Tokens of a text that stands alone; special tokens written in it are text."""
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)

    def encode(self, text: str) -> list[int]:
        if not self._prefix:
            return self.plain(text)
        ids = self.plain(_PROBE + text)
        return ids[len(self._prefix) :] if ids[: len(self._prefix)] == self._prefix else ids

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join([self._tokenizer.token_bytes(id) for id in ids])
