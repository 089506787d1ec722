"""What a tokenizer.json's decoder makes of one token: bytes that can be joined, whatever comes before and after.

The library decodes whole sequences. All decoders of language models work a token at a time, apart from a space that
they take off at the start; byte by byte, they can also stop within a character, where the library would give U+FFFD
for each of its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tokentrail.protocol import ModelFileError
from tokentrail.text.byte_level import decode_byte_level

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CLEANUP = (
    *((f" {mark}", mark) for mark in (".", "?", "!", ",")),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
"""The tidying of WordPiece decoders."""

Step = Callable[[str], "str | bytes"]


class TokenDecoder:
    """From the JSON of a decoder."""

    def __init__(self, decoder: Mapping[str, Any] | None, origin: str) -> None:
        """None: tokens are words. Raises `ModelFileError` for a decoder of an unknown kind."""
        self._steps: list[Step] = []
        self._space: str | None = None
        """What the first token of a text begins with where that space was not in the text; None: it always was."""
        self._fused = False
        if decoder is None:
            self._steps.append(lambda token: " " + token)
            self._space = ""
        else:
            self._add(decoder, origin)

    def bytes_of(self, token: str) -> bytes:
        for step in self._steps:
            result = step(token)
            if isinstance(result, bytes):
                return result
            token = result
        return token.encode("utf-8", "replace")

    def brings_space(self, token: str) -> bool:
        """Whether this token, as the first of a text, begins with a space that was not in the text."""
        return self._space is not None and token.startswith(self._space)

    def _add(self, decoder: Mapping[str, Any], origin: str) -> None:
        kind = decoder.get("type")
        if kind == "Sequence":
            for step in decoder["decoders"]:
                self._add(step, origin)
        elif kind == "ByteLevel":
            self._steps.append(decode_byte_level)
        elif kind == "ByteFallback":
            self._steps.append(_byte_fallback)
        elif kind == "Fuse":
            self._fused = True
        elif kind == "Replace":
            self._steps.append(_replacing(decoder["pattern"], decoder["content"]))
        elif kind == "Metaspace":
            self._steps.append(_replacing({"String": decoder["replacement"]}, " "))
            if decoder.get("prepend_scheme", "always") != "never":
                self._space = decoder["replacement"]
        elif kind == "Strip":
            content, start, stop = decoder["content"], decoder["start"], decoder["stop"]
            if not self._fused:
                self._steps.append(lambda token: _strip(token, content, start, stop))
            elif content == " " and start:
                self._space = ""
        elif kind == "WordPiece":
            prefix, cleanup = decoder["prefix"], decoder.get("cleanup", True)
            self._steps.append(lambda token: _word_piece(token, prefix, cleanup))
            self._space = ""
        elif kind == "BPEDecoder":
            self._steps.append(_replacing({"String": decoder["suffix"]}, " "))
        else:
            raise ModelFileError(
                f"{origin}: the tokenizer's decoder {kind!r:.80} is not known. "
                "Use a newer version of Tokentrail, or a GGUF file of the model."
            )


def _byte_fallback(token: str) -> str | bytes:
    match = _BYTE.fullmatch(token)
    return bytes.fromhex(match[1]) if match else token


def _replacing(pattern: Mapping[str, str], content: str) -> Step:
    if "String" in pattern:
        text = pattern["String"]
        return lambda token: token.replace(text, content)
    from tokenizers import Regex
    from tokenizers.decoders import Replace

    replace = Replace(Regex(pattern["Regex"]), content)
    return lambda token: replace.decode([token])


def _strip(token: str, content: str, start: int, stop: int) -> str:
    for _ in range(min(start, len(token))):
        token = token.removeprefix(content)
    for _ in range(min(stop, len(token))):
        token = token.removesuffix(content)
    return token


def _word_piece(token: str, prefix: str, cleanup: bool) -> str:
    text = token[len(prefix) :] if token.startswith(prefix) else " " + token
    if cleanup:
        for before, after in _CLEANUP:
            text = text.replace(before, after)
    return text
