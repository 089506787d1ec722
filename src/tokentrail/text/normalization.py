"""What is done to ordinary text before it is split into tokens."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from tokentrail.checkpoints import TokenizerSource
from tokentrail.text.library import build

if TYPE_CHECKING:
    from tokenizers.normalizers import Precompiled

_SPACES = re.compile(" {2,}")


class Normalizer:
    """SentencePiece's compiled rules, Unicode's composed form (NFC), and the tidying of spaces, as a model asks."""

    def __init__(self, source: TokenizerSource, origin: str) -> None:
        """Raises `ModelFileError` where the compiled rules are damaged."""
        self._nfc = source.normalizer == "nfc"
        self._tidy = source.remove_extra_whitespaces
        self._compiled: Precompiled | None = None
        if source.charsmap:
            from tokenizers.normalizers import Precompiled

            self._compiled = build(lambda: Precompiled(source.charsmap), origin)

    def __call__(self, text: str) -> str:
        if self._nfc:
            return unicodedata.normalize("NFC", text)
        if self._compiled is not None:
            text = self._compiled.normalize_str(text)
        return _SPACES.sub(" ", text).strip(" ") if self._tidy else text
