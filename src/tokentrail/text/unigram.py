"""SentencePiece's Unigram model: of all ways to cut a text into pieces, the likeliest (Kudo 2018, arXiv:1804.10959)."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrail.text.library import build, encode
from tokentrail.text.sentencepiece_bpe import SPACE


class Unigram:
    """Ordinary text → ids, by the `tokenizers` library."""

    def __init__(
        self,
        pieces: Sequence[str | None],
        scores: Sequence[float],
        unknown: int,
        byte_ids: Sequence[int | None] | None,
        origin: str,
    ) -> None:
        """`pieces`: by id, None for those that ordinary text never becomes; `scores`: log-probabilities, by id;
        `byte_ids`: what unknown characters become, by byte; None: `unknown`."""
        import tokenizers
        from tokenizers.models import Unigram as Model

        # The library wants a text for every id. Noncharacters are in no text.
        named = [
            (f"\ufdd0{id}\ufdd1" if piece is None else piece, score)
            for id, (piece, score) in enumerate(zip(pieces, scores, strict=True))
        ]
        self._tokenizer = build(lambda: tokenizers.Tokenizer(Model(named, unk_id=unknown)), origin)
        self._unknown, self._byte_ids = unknown, byte_ids

    def encode(self, text: str) -> list[int]:
        """Ids of normalized `text`, which holds no special token and no lone surrogate. Thread-safe."""
        text = text.replace(" ", SPACE)
        ids = encode(self._tokenizer, text)
        if self._byte_ids is None or self._unknown not in ids:
            return ids
        result: list[int] = []
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if id == self._unknown:
                found = [self._byte_ids[byte] for byte in text[start:end].encode("utf-8")]
                result += [self._unknown if id is None else id for id in found]
            else:
                result.append(id)
        return result
