"""BPE over characters, with spaces as U+2581 and bytes as a fallback, by merges: how Gemma's tokenizers are written
since its fourth generation."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrail.text.byte_level import build_bpe
from tokentrail.text.library import encode
from tokentrail.text.pretokenizers import PreTokenizer
from tokentrail.text.sentencepiece_bpe import SPACE


class CharacterBPE:
    """Ordinary text → ids, by the `tokenizers` library."""

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[str], rule: PreTokenizer) -> None:
        import tokenizers
        from tokenizers.pre_tokenizers import Sequence as Steps
        from tokenizers.pre_tokenizers import Split

        model = build_bpe(vocabulary, merges, byte_fallback=True, ignore_merges=rule.ignore_merges)
        self._tokenizer = tokenizers.Tokenizer(model)
        steps = [Split(tokenizers.Regex(pattern), "isolated") for pattern in rule.patterns]
        self._tokenizer.pre_tokenizer = Steps(steps)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, which holds no special token and no lone surrogate. Thread-safe."""
        return encode(self._tokenizer, text.replace(" ", SPACE))
