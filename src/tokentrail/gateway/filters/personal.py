"""Personal data: e-mail addresses, telephone numbers, identity cards, bank cards, and the keys of services.

Numbers are found however they are grouped (`6222 0200-0000 0000`), in any of Unicode's digits, and count only where
their check digits are right: of random 16-digit numbers nine in ten are left alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from datetime import date

from tokentrail.gateway.filters.skeleton import fold
from tokentrail.gateway.filters.spans import Span, Window

_LONGEST_NUMBER = 40
"""Characters of a number with what separates its groups."""
_LONGEST_WORD = 320
"""Of an address or a key."""
_NUMBER_RUN = re.compile(r"\+?[0-9](?:[ \-.()]{0,2}[0-9Xx](?![A-WYZa-wyz]))*")
_GROUP = re.compile(r"[0-9]+[Xx]?")
_EMAIL = re.compile(
    r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,8}[A-Za-z]{2,24}"
)
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_-]{20,200}|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,200}"
    r"|github_pat_[A-Za-z0-9_]{30,200}|xox[abprs]-[A-Za-z0-9-]{10,200}|AIza[A-Za-z0-9_-]{35}|hf_[A-Za-z0-9]{30,80}"
    r"|LTAI[A-Za-z0-9]{16,24}|AKID[A-Za-z0-9]{32})"
)
_WORD_END = re.compile(r"[A-Za-z0-9._%+@-]*\Z")
_NUMBER_END = re.compile(r"[+0-9][0-9Xx \-.()]*\Z")
_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def is_identity_card(digits: str) -> bool:
    """China's resident identity number: GB 11643-1999, whose check character is ISO 7064's MOD 11-2."""
    if len(digits) != 18 or not digits[:17].isdigit():
        return False
    try:
        born = date(int(digits[6:10]), int(digits[10:12]), int(digits[12:14]))
    except ValueError:
        return False
    if not 1900 <= born.year <= 2100 or not "11" <= digits[:2] <= "91":
        return False
    total = sum(weight * int(digit) for weight, digit in zip(_WEIGHTS, digits, strict=False))
    return digits[17].upper() == "10X98765432"[total % 11]


def is_bank_card(digits: str) -> bool:
    """A card number: ISO/IEC 7812, with Luhn's check digit."""
    if (
        not 13 <= len(digits) <= 19
        or not digits.isdigit()
        or digits[0] not in "23456"
        or len(set(digits)) == 1
    ):
        return False
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def is_phone(digits: str, *, international: bool = False) -> bool:
    """A mobile number of China, or any number that is written with its country's code (ITU-T E.164)."""
    if not digits.isdigit():
        return False
    if international:
        return 8 <= len(digits) <= 15 and digits[0] != "0"
    if digits.startswith("86") and len(digits) == 13:
        digits = digits[2:]
    return len(digits) == 11 and digits[0] == "1" and digits[1] in "3456789"


KINDS = ("email", "phone", "identity_card", "bank_card", "key")


class Personal:
    """Personal data of some `kinds` (of `KINDS`)."""

    def __init__(self, kinds: tuple[str, ...] = KINDS) -> None:
        """Raises `ValueError` for an unknown kind."""
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"{kind!r} is not one of {', '.join(KINDS)}")
        self._kinds = frozenset(kinds)

    def watch(self) -> _PersonalWatcher:
        return _PersonalWatcher(self._kinds)


class _PersonalWatcher:
    def __init__(self, kinds: frozenset[str]) -> None:
        self._kinds = kinds
        self._words = bool(kinds & {"email", "key"})
        self._numbers = bool(kinds & {"phone", "identity_card", "bank_card"})

    def look(self, window: Window) -> tuple[list[Span], int]:
        text, base, final = window
        plain, places = _plain(text)
        held = len(plain)
        if not final:
            if self._words and (end := _WORD_END.search(plain)) is not None:
                held = min(held, max(end.start(), len(plain) - _LONGEST_WORD))
            if self._numbers and (end := _NUMBER_END.search(plain)) is not None:
                held = min(held, max(end.start(), len(plain) - _LONGEST_NUMBER))
        spans = [
            Span(base + places(start), base + places(end - 1) + 1, kind)
            for start, end, kind in self._find(plain)
            # What touches the end may go on.
            if final or end < len(plain)
        ]
        return spans, base + (len(text) if held == len(plain) else places(held))

    def _find(self, text: str) -> Iterator[Span]:
        if "email" in self._kinds and "@" in text:
            for match in _EMAIL.finditer(text):
                yield Span(match.start(), match.end(), "email")
        if "key" in self._kinds:
            for match in _KEY.finditer(text):
                yield Span(match.start(), match.end(), "key")
        if self._numbers:
            for run in _NUMBER_RUN.finditer(text):
                if run.end() - run.start() >= 8:
                    yield from self._in_run(text, run)

    def _in_run(self, text: str, run: re.Match[str]) -> Iterator[Span]:
        """Numbers made of whole groups of a run of digits."""
        groups = [(run.start() + g.start(), run.start() + g.end()) for g in _GROUP.finditer(run.group())]
        for first, (start, _) in enumerate(groups):
            if start and text[start - 1].isalnum():
                continue
            digits = ""
            for begin, end in groups[first:]:
                digits += text[begin:end]
                if len(digits) > 19 or end - start > _LONGEST_NUMBER:
                    break
                if end < len(text) and text[end].isalnum():
                    continue
                plus = start > 0 and text[start - 1] == "+"
                kind = self._kind(digits, plus)
                if kind is not None:
                    yield Span(start - plus, end, kind)

    def _kind(self, digits: str, plus: bool) -> str | None:
        checks: tuple[tuple[str, Callable[[str], bool]], ...] = (
            ("identity_card", is_identity_card),
            ("bank_card", is_bank_card),
            ("phone", lambda number: is_phone(number, international=plus) or is_phone(number)),
        )
        return next((kind for kind, check in checks if kind in self._kinds and check(digits)), None)


def _plain(text: str) -> tuple[str, Callable[[int], int]]:
    """The text in ASCII where a character has a form there, without what nobody sees; and where each character was."""
    if text.isascii():
        return text, lambda at: at
    kept: list[str] = []
    places: list[int] = []
    for at, character in enumerate(text):
        if character.isascii():
            kept.append(character)
        elif fold(character).ignorable:
            continue
        else:
            digit = unicodedata.decimal(character, None)
            form = unicodedata.normalize("NFKC", character)
            kept.append(str(digit) if digit is not None else form if len(form) == 1 else character)
        places.append(at)
    return "".join(kept), places.__getitem__
