"""Which of several engines has computed the beginning of a prompt before: an estimate, kept beside them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

_CHUNK = 64
"""Tokens by which beginnings are told apart."""
_LONGEST = 64
"""Chunks that are looked at."""


class PrefixMap:
    """Beginnings of prompts by their hashes, with the engines that have them. The least recently asked leave first.

    What an engine's cache has really kept is not known here: a wrong guess costs the time of a prefill, no more.
    """

    def __init__(self, capacity: int = 16_384) -> None:
        self._capacity = capacity
        self._engines: OrderedDict[int, int] = OrderedDict()
        """Hash → a bit for each engine."""

    def __len__(self) -> int:
        return len(self._engines)

    def hashes(self, prompt: Sequence[int], salt: object) -> list[int]:
        """Of the beginnings of `prompt`, the shortest first. Only prompts with the same `salt` share any."""
        found: list[int] = []
        value = hash(salt)
        for end in range(_CHUNK, min(len(prompt), _CHUNK * _LONGEST) + 1, _CHUNK):
            value = hash((value, *prompt[end - _CHUNK : end]))
            found.append(value)
        return found

    def engines(self, hashes: Sequence[int]) -> frozenset[int]:
        """The engines with the longest beginning that any of them has; none where none has one."""
        for value in reversed(hashes):
            bits = self._engines.get(value, 0)
            if bits:
                return frozenset(engine for engine in range(bits.bit_length()) if bits >> engine & 1)
        return frozenset()

    def add(self, hashes: Sequence[int], engine: int) -> None:
        """`engine` computes a prompt with these beginnings."""
        engines = self._engines
        for value in hashes:
            engines[value] = engines.get(value, 0) | 1 << engine
            engines.move_to_end(value)
        while len(engines) > self._capacity:
            engines.popitem(last=False)

    def forget(self, engine: int) -> None:
        """The engine's cache is empty again."""
        keep = ~(1 << engine)
        self._engines = OrderedDict(
            (value, bits & keep) for value, bits in self._engines.items() if bits & keep
        )
