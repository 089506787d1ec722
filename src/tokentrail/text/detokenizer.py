"""Token ids → text, a few tokens at a time, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from tokentrail.text.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The text of one growing sequence of tokens.

    However the ids are cut into calls, the pieces joined, with the last from `flush`, equal
    `tokenizer.decode(all_ids)`. Each token costs the same whatever came before it. The bytes of a character
    that is not complete yet are held back; bytes that no later ones can make valid become U+FFFD at once.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, shown: Collection[int] = ()
    ) -> None:
        """`shown`: special tokens that are text all the same."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._shown = shown
        self._decoder = _UTF8("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens; return the text they complete (possibly empty)."""
        if self._shown:
            token_bytes, hidden = self._tokenizer.token_bytes, self._hidden
            return self._decoder.decode(b"".join([token_bytes(id) for id in token_ids if not hidden(id)]))
        return self._decoder.decode(self._tokenizer.decode_bytes(token_ids, skip_special_tokens=self._skip))

    def _hidden(self, id: int) -> bool:
        return self._skip and id not in self._shown and self._tokenizer.is_special(id)

    def flush(self) -> str:
        """End the sequence: what is left of an incomplete character becomes U+FFFD."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text
