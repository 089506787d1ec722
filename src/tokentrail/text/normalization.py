"""What is done to ordinary text before it is split into tokens."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from tokentrail.checkpoints import TokenizerSource
from tokentrail.text.charsmap import Charsmap

_SPACES = re.compile(" {2,}")


class Normalizer:
    """SentencePiece's compiled rules, Unicode's composed form (NFC), and the tidying of spaces, as a model asks."""

    def __init__(self, source: TokenizerSource, origin: str) -> None:
        """Raises `ModelFileError` where the compiled rules are damaged."""
        self._nfc = source.normalizer == "nfc"
        self._tidy = source.remove_extra_whitespaces
        self._charsmap = Charsmap(source.charsmap, origin) if source.charsmap else None

    def __call__(self, text: str) -> str:
        text = self._characters(text)
        return _SPACES.sub(" ", text).strip(" ") if self._tidy else text

    def _characters(self, text: str) -> str:
        if self._nfc:
            return unicodedata.normalize("NFC", text)
        return text if self._charsmap is None else self._charsmap(text)

    def among_tokens(self, pieces: Iterable[str | int]) -> list[str | int]:
        """Texts normalized, and spaces tidied as if the tokens between them were words."""
        result: list[str | int] = []
        after_space = self._tidy  # those at the start go, too
        for piece in pieces:
            if isinstance(piece, int):
                result.append(piece)
                after_space = False
                continue
            text = self._characters(piece)
            if self._tidy:
                text = _SPACES.sub(" ", text)
                if after_space and text.startswith(" "):
                    text = text[1:]
                after_space = text.endswith(" ") if text else after_space
            if text:
                result.append(text)
        if self._tidy and result and isinstance(last := result[-1], str):
            result[-1:] = [stripped] if (stripped := last.rstrip(" ")) else []
        return result
