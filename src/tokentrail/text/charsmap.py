"""SentencePiece's compiled normalization rules (`precompiled_charsmap`), such as `nmt_nfkc`.

A map from sequences of characters to others: a double-array trie (darts-clone's units, 32 bits each) over UTF-8, whose
values are places in a block of strings that end in zero bytes. At each place the longest sequence counts.
"""

from __future__ import annotations

import re

import numpy as np

from tokentrail.protocol import ModelFileError

_LEAF, _WIDE, _LABEL, _VALUE = 1 << 8, 1 << 9, 0x800000FF, 0x7FFFFFFF
_ASCII = range(0x20, 0x7F)


MAX_REPLACEMENT = 1024
"""Bytes that one sequence may become. (U+FDFA becomes 33 in `nmt_nfkc`, the most there.)"""
_MAX_SEQUENCE = 256
"""Bytes of a sequence that are looked at; real ones have some ten."""


def longest_replacement(data: bytes) -> int:
    """Bytes of the longest string that such a map can give."""
    strings = data[4 + int.from_bytes(data[:4], "little") :]
    return max(map(len, strings.split(b"\0")))


class Charsmap:
    def __init__(self, data: bytes, origin: str) -> None:
        """Raises `ModelFileError` where `data` is no such map."""
        size = int.from_bytes(data[:4], "little")
        if len(data) < 8 or size % 4 or not 4 <= size <= len(data) - 4 or not data.endswith(b"\0"):
            raise ModelFileError(
                f"{origin}: the tokenizer's normalization rules are damaged. Download the model's files again."
            )
        if (longest := longest_replacement(data)) > MAX_REPLACEMENT:
            raise ModelFileError(
                f"{origin}: the tokenizer's normalization rules replace characters by {longest} bytes; at most "
                f"{MAX_REPLACEMENT} are possible. Download the model's files again."
            )
        self._units: list[int] = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self._strings = data[4 + size :]
        # Nearly always printable ASCII stays as it is, unless something that is not stands behind it.
        plain = all(self._match(bytes([a]))[0] == 0 for a in _ASCII) and not any(
            self._match(bytes([a, b]))[0] for a in _ASCII for b in _ASCII
        )
        self._changing = re.compile(r"[ -~]?[^ -~]+" if plain else "(?s:.+)")

    def __call__(self, text: str) -> str:
        return self._changing.sub(lambda match: self._mapped(match[0]), text)

    def _mapped(self, text: str) -> str:
        data, position = text.encode("utf-8"), 0
        result: list[bytes] = []
        while position < len(data):
            length, value = self._match(data, position)
            if length:
                end = self._strings.find(b"\0", value)
                result.append(self._strings[value:end] if end >= 0 else b"")
            else:
                first = data[position]
                length = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
                result.append(data[position : position + length])
            position += length
        return b"".join(result).decode("utf-8", "replace")

    def _match(self, data: bytes, start: int = 0) -> tuple[int, int]:
        """(bytes of the longest sequence at `start`, its value); (0, 0): there is none."""
        units, count = self._units, len(self._units)
        node, found = _offset(units[0]), (0, 0)
        for position in range(start, min(len(data), start + _MAX_SEQUENCE)):
            node ^= data[position]
            if node >= count:
                break
            unit = units[node]
            if unit & _LABEL != data[position]:
                break
            node ^= _offset(unit)
            if unit & _LEAF and node < count:
                found = (position + 1 - start, units[node] & _VALUE)
        return found


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & _WIDE) >> 6)
