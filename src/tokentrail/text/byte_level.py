"""GPT-2's byte alphabet, and byte-level BPE on top of the `tokenizers` library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokentrail.text.library import attempt, build, encode
from tokentrail.text.pretokenizers import PreTokenizer

if TYPE_CHECKING:
    from tokenizers.models import BPE


def _byte_alphabet() -> dict[int, str]:
    """Byte → the printable character that stands for it in vocabularies (GPT-2's `bytes_to_unicode`).

    Printable Latin-1 stands for itself; the other 68 bytes follow in order from U+0100 on.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in own}
    others = [byte for byte in range(256) if byte not in alphabet]
    alphabet.update((byte, chr(0x100 + index)) for index, byte in enumerate(others))
    return alphabet


BYTE_TO_CHARACTER = _byte_alphabet()
UTF8_BYTES = [*range(0xC0), *range(0xC2, 0xF5)]
"""The bytes that occur in UTF-8."""
_CHARACTER_TO_BYTE = {ord(character): byte for byte, character in BYTE_TO_CHARACTER.items()}


def encode_byte_level(token: bytes) -> str:
    """How a vocabulary writes these bytes."""
    return token.decode("latin-1").translate(BYTE_TO_CHARACTER)


def decode_byte_level(token: str) -> bytes:
    """The bytes that a vocabulary entry stands for; its own UTF-8 where it is not in the byte alphabet."""
    try:
        return bytes([_CHARACTER_TO_BYTE[ord(character)] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def build_bpe(vocabulary: dict[str, int], merges: Sequence[str], **options: Any) -> BPE:
    """The library's BPE model. Raises `ModelFileError` where it will not have the vocabulary."""
    # Imported here: only processes that handle text pay for it.
    from tokenizers.models import BPE

    pairs = [(left, right) for merge in merges for left, _, right in (merge.partition(" "),)]
    model = attempt(lambda: BPE(vocabulary, pairs, **options))
    if model is not None:
        return model
    # It stumbles over merges whose parts or result are no tokens. They have no use anyway.
    usable = [
        (left, right)
        for left, right in pairs
        if left in vocabulary and right in vocabulary and left + right in vocabulary
    ]
    return build(lambda: BPE(vocabulary, usable, **options), "the model's tokenizer")


class ByteLevelBPE:
    """Ordinary text → ids, by byte-level BPE (Radford et al. 2019; Sennrich et al., arXiv:1508.07909)."""

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[str], rule: PreTokenizer) -> None:
        import tokenizers
        from tokenizers.pre_tokenizers import ByteLevel, Split
        from tokenizers.pre_tokenizers import Sequence as Steps

        model = build_bpe(vocabulary, merges, ignore_merges=rule.ignore_merges)
        steps: list[Split | ByteLevel] = [
            Split(tokenizers.Regex(pattern), "isolated") for pattern in rule.patterns
        ]
        steps.append(ByteLevel(add_prefix_space=False, use_regex=False))
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = Steps(steps)
        self._lacking, self._careful = None, self._tokenizer
        missing = [byte for byte in UTF8_BYTES if BYTE_TO_CHARACTER[byte] not in vocabulary]
        if missing:
            # Bytes that the vocabulary lacks vanish, but keep their neighbours from being merged. The library
            # would merge these, so such bytes become cuts; only in texts that may have them, for speed.
            pattern = "[" + "".join(f"\\x{{{ord(BYTE_TO_CHARACTER[byte]):x}}}" for byte in missing) + "]"
            self._careful = tokenizers.Tokenizer(model)
            self._careful.pre_tokenizer = Steps([*steps, Split(tokenizers.Regex(pattern), "removed")])
            characters = [re.escape(chr(byte)) for byte in missing if byte < 0x80]
            beyond_ascii = "\\x80-\\U0010ffff" if missing[-1] >= 0x80 else ""
            self._lacking = re.compile("[" + "".join(characters) + beyond_ascii + "]")

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, which holds no special token and no lone surrogate. Thread-safe."""
        careful = self._lacking is not None and self._lacking.search(text)
        return encode(self._careful if careful else self._tokenizer, text)
