"""A text with its disguises taken off: width, case, accents, look-alikes, signs for letters, separators.

Each character folds to its *skeleton* (one class of characters that stand for each other, or nothing where it only
separates) and keeps its *letter* (what it is, for the closer look that decides). Two texts that a reader takes for the
same word have the same skeleton; the reverse needs that closer look (`words.py`).
"""

from __future__ import annotations

import functools
import importlib.util
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokentrail.gateway.filters.look_alikes import drawn_like, latin_form

SIGNS = {
    "@": "a", "$": "s", "!": "i", "|": "il", "€": "e", "¢": "c", "£": "l", "¡": "i", "+": "t", "(": "c", "§": "s",
    "#": "h", "√": "v",
}  # fmt: skip
"""Signs written for letters, and those letters."""
DIGITS = {"0": "o", "1": "il", "3": "e", "4": "a", "5": "s", "7": "t", "8": "b", "9": "g"}
"""Digits written for letters, and those letters."""
_CLASS = {"l": "i"}
"""Letters that one sign may stand for share a class."""
_MARKED = ("LATIN", "GREEK", "CYRILLIC")
"""Scripts whose letters mean the same without their accents."""


class Folded(NamedTuple):
    """A character without its disguise."""

    skeleton: str
    """Classes, usually one; empty for what only separates."""
    letters: str
    """What it is itself, for each class: itself folded, without what look-alikes and signs may stand for."""
    ignorable: bool
    """It has no width or only marks another character: nobody sees that it is there."""
    own: str
    """For each class: the letter of another script that is drawn like the one it folds to, or a space."""


@functools.cache
def _simplified() -> dict[str, str]:
    """Traditional Chinese characters → simplified ones, from OpenCC's table; empty where that is not installed."""
    found = importlib.util.find_spec("opencc")
    if found is None or found.origin is None:
        return {}
    table = Path(found.origin).parent / "dictionary" / "TSCharacters.txt"
    pairs = (line.split("\t") for line in table.read_text(encoding="utf-8").splitlines())
    return {pair[0]: pair[1].split(" ")[0] for pair in pairs if len(pair) == 2}


def _enclosed(character: str) -> str:
    """Letters in boxes and flags, which Unicode's compatibility mapping leaves alone."""
    code = ord(character)
    for first in (0x1F130, 0x1F150, 0x1F170, 0x1F1E6):
        if first <= code < first + 26:
            return chr(ord("a") + code - first)
    return character


def is_ignorable(character: str) -> bool:
    """Nobody sees that it is there: it has no width, only marks another character, or is for machines."""
    category = unicodedata.category(character)
    if category == "Cc":
        return not character.isspace()
    # These letters and signs by category are drawn as nothing, and so is what is not assigned yet in the last range.
    return (
        category in ("Mn", "Me", "Cf")
        or character in "\u115f\u1160\u3164\uffa0\u2800"
        or 0xE0000 <= ord(character) < 0xE1000
    )


def compatible(character: str) -> str:
    """What Unicode's compatibility mapping makes of it; of what is in brackets or has a stop, only that: `⒜`, `⒈`."""
    form = unicodedata.normalize("NFKC", character)
    if len(form) > 1 and not character.isalpha():
        form = "".join(filter(str.isalnum, form)) or form
    return form


@functools.cache
def fold(character: str) -> Folded:
    """One character. Cached: there are few that are used."""
    if is_ignorable(character):
        return Folded("", "", True, "")
    text = compatible(_enclosed(character)).casefold()
    skeleton, letters, own = [], [], []
    for one in text:
        decomposed = unicodedata.normalize("NFKD", one)
        base = decomposed[:1] if unicodedata.name(one, "").startswith(_MARKED) else one
        base = (None if base.isascii() else latin_form(base)) or _simplified().get(base, base)
        plain = drawn_like(base)
        of_another = " " if plain is None else base
        base = plain or base
        stands = SIGNS.get(base) or DIGITS.get(base)
        if stands is None and not base.isalnum():
            continue
        letter = (stands or base)[0]
        skeleton.append(_CLASS.get(letter, letter))
        letters.append(base)
        own.append(of_another)
    return Folded("".join(skeleton), "".join(letters), False, "".join(own))


def is_wide(letter: str) -> bool:
    """Whether words of this letter's script are written without spaces between them."""
    code = ord(letter)
    return 0x2E80 <= code <= 0x9FFF or 0xAC00 <= code <= 0xD7AF or 0xF900 <= code <= 0xFAFF or code >= 0x20000


_SHORT = 48
"""Characters below which arrays cost more than they save."""
_UNKNOWN, _NOTHING, _SEVERAL = "\0", "\1", "\2"
"""In tables: not looked up yet; folds to nothing; to several characters. What folds to one folds to none of these."""


class CodeTable:
    """A number for each character, looked up for whole texts at once; made as characters come."""

    def __init__(self, dtype: type[np.generic], number_of: Callable[[int], int]) -> None:
        """`number_of`: a character's code → its number, which is not 0."""
        self._dtype = dtype
        self._number_of = number_of
        self._table: np.ndarray[Any, Any] | None = None

    def __call__(self, text: str) -> bytes:
        """The numbers of all characters, little-endian. 0: not known yet; after `learn`, all are."""
        if self._table is None:
            # Of pages that are never touched, nothing is there.
            self._table = np.zeros(0x110000, np.dtype(self._dtype).newbyteorder("<"))
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        return self._table.take(codes).tobytes()

    def learn(self, text: str) -> None:
        assert self._table is not None
        for code in set(map(ord, text)):
            self._table[code] = self._number_of(code)


class Folder:
    """Folds whole texts, fast."""

    def __init__(
        self, *, separators: str = "", joiners: str = "", signs: bool = True, wide: str | None = None
    ) -> None:
        """`separators`, `wide`: what stands for a visible character that is no letter, and for one of a script without
        spaces (None: itself); `joiners` fold to nothing; `signs`: signs are the letters that they may stand for.
        """
        self._table = _FolderTable(separators, joiners, signs, wide)
        self._codes = CodeTable(np.uint32, self._code_of)
        folded = {code: self._table[code] for code in range(128)}
        self._deleted = bytes(code for code, to in folded.items() if not to)
        self._ascii = bytes(ord(folded.get(code) or "\0") for code in range(256))

    def __call__(self, text: str) -> str:
        if text.isascii():
            return text.encode().translate(self._ascii, self._deleted).decode()
        if len(text) < _SHORT:
            return text.translate(self._table)
        folded = self._codes(text).decode("utf-32-le", "surrogatepass")
        if _UNKNOWN in folded:
            self._codes.learn(text)
            folded = self._codes(text).decode("utf-32-le", "surrogatepass")
        if _SEVERAL in folded:
            return text.translate(self._table)
        return folded.replace(_NOTHING, "")

    def _code_of(self, code: int) -> int:
        folded = self._table[code]
        return ord(folded if len(folded) == 1 else _SEVERAL if folded else _NOTHING)


class _FolderTable(dict[int, str]):
    """For `str.translate`: fills itself as characters come."""

    def __init__(self, separators: str, joiners: str, signs: bool, wide: str | None) -> None:
        super().__init__()
        self._separators, self._signs, self._wide = separators, signs, wide
        self._joiners = frozenset(joiners)

    def __missing__(self, code: int) -> str:
        character = chr(code)
        folded = fold(character)
        if character in self._joiners and not (self._signs and folded.skeleton):
            found = ""
        elif folded.letters in SIGNS and not self._signs:
            found = self._separators
        elif not folded.skeleton:
            found = "" if folded.ignorable else self._separators
        elif self._wide is not None and is_wide(folded.skeleton[0]):
            found = self._wide
        else:
            found = folded.skeleton
        self[code] = found
        return found


skeleton_of = Folder()
"""The skeletons of all characters, joined."""
