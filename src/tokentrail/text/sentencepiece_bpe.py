"""SentencePiece-style BPE, as GGUF's `llama` tokenizers need it: merges chosen by score, bytes as a fallback.

Text starts as single characters, spaces written as U+2581. Of all neighbours whose concatenation is in the
vocabulary, the pair with the highest score is joined, the leftmost of equals first, until none is left.
Characters that no token covers become their UTF-8 bytes (`<0xNN>` tokens). (Kudo and Richardson 2018,
arXiv:1808.06226; the order of equal scores is that of llama.cpp, which GGUF files are written for.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush

SPACE = "\u2581"
CACHED_WORDS = 1 << 15
LONG_WORD = 32


class SentencePieceBPE:
    """Ordinary text → ids."""

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        scores: Sequence[float],
        byte_ids: Sequence[int | None],
        unknown: int,
        *,
        fuse_unknown: bool = False,
    ) -> None:
        """`vocabulary`: text → id of all that text may become; `scores`: by id; `byte_ids`: by byte; `fuse_unknown`:
        a run of unknown bytes is one token."""
        self._vocabulary = dict(vocabulary)
        self._scores = scores
        self._byte_ids = byte_ids
        self._unknown, self._fuse = unknown, fuse_unknown
        # Where two characters stand side by side in no token, no merge can cross between them: the text falls
        # into parts that merge independently, and can be remembered. In nearly all vocabularies a word's end
        # is such a place, which a pattern finds quickly; long words are looked at pair by pair.
        crossing = re.compile(rf"[^{SPACE}]{SPACE}")
        by_word = not any(map(crossing.search, self._vocabulary))
        self._words = re.compile(rf"{SPACE}*[^{SPACE}]+|{SPACE}+" if by_word else "(?s:.+)")
        self._cached = lru_cache(CACHED_WORDS)(self._merge)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, which holds no special token and no lone surrogate. Thread-safe."""
        ids: list[int] = []
        for word in self._words.findall(text.replace(" ", SPACE)):
            if len(word) <= LONG_WORD:
                ids += self._cached(word)
            else:
                for part in self._parts(word):
                    ids += self._cached(part) if len(part) <= LONG_WORD else self._merge(part)
        if self._fuse and self._unknown in ids:
            unknown = self._unknown
            return [
                id for id, before in zip(ids, [-1, *ids], strict=False) if id != unknown or before != unknown
            ]
        return ids

    @cached_property
    def _pairs(self) -> set[str]:
        """Every two characters that stand side by side in a token."""
        return {token[i : i + 2] for token in self._vocabulary for i in range(len(token) - 1)}

    def _parts(self, word: str) -> Iterator[str]:
        pairs, start = self._pairs, 0
        for end in range(1, len(word)):
            if word[end - 1 : end + 1] not in pairs:
                yield word[start:end]
                start = end
        yield word[start:]

    def _merge(self, text: str) -> tuple[int, ...]:
        find, scores = self._vocabulary.get, self._scores
        symbols: list[str] = list(text)  # "" once joined into its left neighbour
        count = len(symbols)
        left = list(range(-1, count - 1))
        right = [*range(1, count), -1] if count else []
        # (-score, index of the left symbol, length of the pair): the length tells outdated entries.
        queue: list[tuple[float, int, int]] = []
        for index in range(count - 1):
            pair = symbols[index] + symbols[index + 1]
            id = find(pair)
            if id is not None:
                queue.append((-scores[id], index, len(pair)))
        heapify(queue)
        while queue:
            _, index, length = heappop(queue)
            next = right[index]
            if not symbols[index] or next < 0 or len(symbols[index]) + len(symbols[next]) != length:
                continue
            symbols[index] += symbols[next]
            symbols[next] = ""
            right[index] = after = right[next]
            if after >= 0:
                left[after] = index
                pair = symbols[index] + symbols[after]
                id = find(pair)
                if id is not None:
                    heappush(queue, (-scores[id], index, len(pair)))
            before = left[index]
            if before >= 0:
                pair = symbols[before] + symbols[index]
                id = find(pair)
                if id is not None:
                    heappush(queue, (-scores[id], before, len(pair)))
        ids: list[int] = []
        for symbol in symbols:
            if symbol:
                id = find(symbol)
                if id is not None:
                    ids.append(id)
                else:
                    ids += self._as_bytes(symbol)
        return tuple(ids)

    def _as_bytes(self, character: str) -> list[int]:
        ids = [self._byte_ids[byte] for byte in character.encode("utf-8")]
        return [self._unknown if id is None else id for id in ids]
