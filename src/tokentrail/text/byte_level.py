"""GPT-2's byte alphabet, and byte-level BPE on top of the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokentrail.text.pretokenizers import PreTokenizer


def _byte_alphabet() -> dict[int, str]:
    """Byte → the printable character that stands for it in vocabularies (GPT-2's `bytes_to_unicode`).

    Printable Latin-1 stands for itself; the other 68 bytes follow in order from U+0100 on.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in own}
    others = [byte for byte in range(256) if byte not in alphabet]
    alphabet.update((byte, chr(0x100 + index)) for index, byte in enumerate(others))
    return alphabet


_CHARACTER_TO_BYTE = {ord(character): byte for byte, character in _byte_alphabet().items()}


def decode_byte_level(token: str) -> bytes:
    """The bytes that a vocabulary entry stands for; its own UTF-8 where it is not in the byte alphabet."""
    try:
        return bytes([_CHARACTER_TO_BYTE[ord(character)] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")


class ByteLevelBPE:
    """Ordinary text → ids, by byte-level BPE (Radford et al. 2019; Sennrich et al., arXiv:1508.07909)."""

    def __init__(self, vocabulary: Mapping[str, int], merges: Sequence[str], rule: PreTokenizer) -> None:
        # Imported here: only processes that handle text pay for it.
        import tokenizers
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import ByteLevel, Split
        from tokenizers.pre_tokenizers import Sequence as Steps

        pairs = [(left, right) for left, space, right in (merge.partition(" ") for merge in merges) if space]
        try:
            model = BPE(dict(vocabulary), pairs, ignore_merges=rule.ignore_merges)
        except Exception:
            # A merge whose parts or result are missing from the vocabulary can never matter, but is refused.
            pairs = [
                pair
                for pair in pairs
                if pair[0] in vocabulary and pair[1] in vocabulary and pair[0] + pair[1] in vocabulary
            ]
            model = BPE(dict(vocabulary), pairs, ignore_merges=rule.ignore_merges)
        steps = [Split(tokenizers.Regex(pattern), "isolated") for pattern in rule.patterns]
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = Steps([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, which holds no special token and no lone surrogate. Thread-safe."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
