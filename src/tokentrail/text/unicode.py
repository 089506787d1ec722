"""Text as Python holds it and text as tokenizers take it."""

from __future__ import annotations

import re

_SURROGATES = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """Surrogate pairs become the characters they stand for, and lone ones, which stand for none, U+FFFD."""
    if _SURROGATES.search(text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
