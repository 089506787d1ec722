"""Filling in the middle of a text: the prompt that models of code know for it (Bavarian et al., arXiv:2207.14255)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokentrail.checkpoints import TokenizerSource
from tokentrail.text.continuing import ContinuedText
from tokentrail.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Marks:
    prefix: str
    suffix: str
    middle: str
    """Empty: the answer stands behind the prefix (Codestral)."""
    end: str = ""
    """What ends the middle, of models that have a token of its own for that."""


_KNOWN = (
    # Qwen-Coder, CodeGemma, Granite 4.
    _Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # StarCoder, StarCoder2, Granite Code, Stable Code.
    _Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    # SantaCoder.
    _Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    # DeepSeek-Coder, DeepSeek-V2 and V3: before the prefix, the hole, and the end of all.
    _Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # Code Llama.
    _Marks("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),
    # Codestral.
    _Marks("[PREFIX]", "[SUFFIX]", ""),
)


@dataclass(frozen=True)
class Infill:
    """The tokens around a text's two parts."""

    prefix: int
    suffix: int
    middle: int | None
    """None: the suffix comes first, and the answer goes on behind the prefix."""
    end_ids: tuple[int, ...] = ()
    """What ends the middle besides the model's usual end tokens."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, source: TokenizerSource) -> Infill | None:
        """As well-known vocabularies have them, or as the file names them; None: the model knows no such thing."""
        for marks in _KNOWN:
            prefix, suffix = tokenizer.token_to_id(marks.prefix), tokenizer.token_to_id(marks.suffix)
            middle = tokenizer.token_to_id(marks.middle) if marks.middle else None
            if prefix is None or suffix is None or (marks.middle and middle is None):
                continue
            end = tokenizer.token_to_id(marks.end) if marks.end else None
            return cls(prefix, suffix, middle, () if end is None else (end,))
        ids = source.infill_token_ids
        if {"prefix", "suffix", "middle"} <= ids.keys():
            return cls(ids["prefix"], ids["suffix"], ids["middle"])
        return None

    def encode(self, prefix: str | Sequence[int], suffix: str, tokenizer: Tokenizer) -> list[int]:
        """The prompt whose answer is what stands between `prefix` and `suffix`. Marks written in these are text."""
        continued = ContinuedText(tokenizer)
        before = continued.plain(prefix) if isinstance(prefix, str) else list(prefix)
        behind = continued.encode(suffix)
        begin = [tokenizer.bos_token_id] if tokenizer.add_bos and tokenizer.bos_token_id is not None else []
        if self.middle is None:
            return [*begin, self.suffix, *behind, self.prefix, *before]
        return [*begin, self.prefix, *before, self.suffix, *behind, self.middle]
