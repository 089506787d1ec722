"""Personal data: e-mail addresses, telephone numbers, identity cards, bank cards, and the keys of services.

Numbers are found however they are grouped (`6222 0200-0000 0000`), in any of Unicode's digits or in Chinese numerals,
and count only where their check digits are right: of random 16-digit numbers nineteen in twenty are left alone. What
stands between their groups may be any signs (`138🔥1234🔥5678`), if it is the same and no other number is near: rows of
numbers are no telephones.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import NamedTuple

from tokentrail.gateway.filters.markup import SeeingThroughMarkup
from tokentrail.gateway.filters.plain import NUMERALS, Plain
from tokentrail.gateway.filters.skeleton import is_wide
from tokentrail.gateway.filters.spans import Span, Watcher, Window

_LONGEST_NUMBER = 44
"""Characters of a number with what separates its groups, and of what tells that it ends there."""
_LONGEST_WORD = 320
"""Of an address or a key."""
_GROUP = re.compile(r"[0-9]+(?:[Xx](?![A-Za-z0-9]))?")
_GAP = r"(?:[^\w+]|_){0,3}"
_RUN = re.compile(rf"[0-9](?:{_GAP}[0-9])*(?:{_GAP}[Xx](?![A-Za-z0-9]))?")
_RUN_END = re.compile(rf"(?:\+|\+?[0-9](?:{_GAP}[0-9])*(?:{_GAP}[Xx]?)?)\Z")
_USUAL_GAP = re.compile(r"[ \-.()]{1,2}")
_MARKS = re.compile(r"[\s*_~`]+")
"""What Markdown takes for marks, and spaces."""
_OF_NUMBERS = re.compile(f"[0-9+{''.join(NUMERALS)}]")
"""Without one of these there is no number, nor the beginning of one."""
_NUMERALS = re.compile(f"[{''.join(NUMERALS)}]{{3}}")

_L = r"A-Za-z0-9\u00c0-\u024f\u0370-\u058f"
"""Latin, Greek, Cyrillic and Armenian letters, and digits: in other scripts, text stands beside an address as it is."""
_LABEL = rf"[{_L}](?:[{_L}-]{{0,62}})"
_LOCAL = rf"(?<![{_L}._%+-])[{_L}._%+-]{{1,64}}"
_EMAIL = re.compile(rf"{_LOCAL}@(?:{_LABEL}\.){{1,8}}[A-Za-z\u00c0-\u024f\u0370-\u058f]{{2,24}}")
_TOP = "com|net|org|edu|gov|info|biz|app|dev|xyz|top|vip|ai|cc|cn|co|de|es|eu|fr|hk|in|io|it|jp|kr|me|ru|sg|tv|tw|uk|us"
_AT_SIGN, _DOT_SIGN = r"\s{0,2}@\s{0,2}", r"\s?\.\s?|。"
_AT_MARKED, _DOT_MARKED = (
    rf"\s?[\[({{<]\s?(?:{word}|{sign})\s?[\])}}>]\s?|\*{{1,3}}{sign}\*{{1,3}}|{code}"
    for word, sign, code in (("at", "@", "%40|艾特"), ("dot", r"\.", "%2E|点"))
)
_AT_WORD, _DOT_WORD = r"\s{1,2}at\s{1,2}", r"\s{1,2}dot\s{1,2}"
_DOT = f"(?:{_DOT_SIGN}|{_DOT_MARKED}|{_DOT_WORD})"
_SPOKEN_HINT = re.compile(r"@|[\[({<]\s?[aA][tT]|%40|艾特|[dD][oO][tT]")
_SPOKEN = re.compile(
    rf"{_LOCAL}(?:(?:{_AT_SIGN}|{_AT_MARKED})(?:{_LABEL}{_DOT}){{1,4}}"
    rf"|{_AT_WORD}(?:{_LABEL}(?:{_DOT_MARKED}|{_DOT_WORD})){{1,4}})(?:{_TOP})(?![{_L}-])",
    re.IGNORECASE,
)
"""An address that is written so that machines do not see it: `john (at) example dot com`. Only with ends that sites
have: `x @ y.T` is a product.
"""
_AT_BEGUN = (
    r"\s{0,2}@?\s{0,2}|\s?[\[({<]\s?(?:at?|@)?\s?[\])}>]?\s?|\*{1,3}@?\*{0,3}|%4?|艾|\s{1,2}at?\s{0,2}"
)
_DOT_BEGUN = (
    r"\s?\.?\s?|。|\s?[\[({<]\s?(?:do?t?|\.)?\s?[\])}>]?\s?|\*{1,3}\.?\*{0,3}|%2?|\s{1,2}do?t?\s{0,2}"
)
_SPOKEN_END = re.compile(
    rf"{_LOCAL}(?:(?:{_AT_BEGUN})"
    rf"|(?:{_AT_SIGN}|{_AT_MARKED}|{_AT_WORD})(?:{_LABEL}{_DOT}){{0,4}}(?:{_LABEL})?(?:{_DOT_BEGUN}))\Z",
    re.IGNORECASE,
)
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_-]{20,200}|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,200}"
    r"|github_pat_[A-Za-z0-9_]{30,200}|xox[abprs]-[A-Za-z0-9-]{10,200}|AIza[A-Za-z0-9_-]{35}|hf_[A-Za-z0-9]{30,80}"
    r"|LTAI[A-Za-z0-9]{16,24}|AKID[A-Za-z0-9]{32})"
)
_WORD_END = re.compile(rf"[{_L}._%+@-]*\Z")
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
        or not ("22" <= digits[:2] <= "27" or digits[0] in "3456")
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
    for code in ("86", "0086"):
        if digits.startswith(code) and len(digits) == 11 + len(code):
            digits = digits[len(code) :]
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

    def watch(self) -> Watcher:
        return SeeingThroughMarkup(lambda: _PersonalWatcher(self._kinds))


class _PersonalWatcher:
    def __init__(self, kinds: frozenset[str]) -> None:
        self._kinds = kinds
        self._words = bool(kinds & {"email", "key"})
        self._numbers = bool(kinds & {"phone", "identity_card", "bank_card"})
        self._open = 0
        """Characters before the first that may still be part of an address or a key."""

    def look(self, window: Window) -> tuple[list[Span], int]:
        original, base, final = window
        plain = Plain(original)
        text = plain.text
        words = numbers = len(text)
        start = plain.index(max(0, self._open - base))
        may_have_numbers = self._numbers and _OF_NUMBERS.search(text) is not None
        if not final:
            if self._words:
                words = self._open_word(text, start)
            if may_have_numbers:
                numbers = self._open_number(plain.with_numerals_as_digits())
        self._open = base + plain.place(words)
        spans = [
            Span(base + plain.place(first), base + plain.place(end - 1) + 1, kind)
            for found, open_from in (
                (self._find_words(text, start), words),
                (self._find_numbers(plain) if may_have_numbers else (), numbers),
            )
            for first, end, kind in found
            # What is open may go on.
            if first < open_from
        ]
        return spans, base + plain.place(min(words, numbers))

    def _open_word(self, text: str, start: int) -> int:
        """From where on the text may be an address or a key that goes on."""
        start = max(start, len(text) - _LONGEST_WORD)
        ends = [_WORD_END, _SPOKEN_END] if "email" in self._kinds else [_WORD_END]
        return min(len(text) if (end := one.search(text, start)) is None else end.start() for one in ends)

    def _open_number(self, text: str) -> int:
        end = _RUN_END.search(text, max(0, len(text) - _LONGEST_NUMBER))
        return len(text) if end is None else end.start()

    def _find_words(self, text: str, start: int) -> Iterator[Span]:
        if "email" in self._kinds:
            patterns = [_EMAIL] if "@" in text else []
            patterns += [_SPOKEN] if _SPOKEN_HINT.search(text, start) else []
            for pattern in patterns:
                for match in pattern.finditer(text, start):
                    yield Span(match.start(), match.end(), "email")
        if "key" in self._kinds:
            for match in _KEY.finditer(text, start):
                yield Span(match.start(), match.end(), "key")

    def _find_numbers(self, plain: Plain) -> Iterator[Span]:
        yield from self._in_runs(plain.text)
        if _NUMERALS.search(plain.text):
            for span in self._in_runs(plain.with_numerals_as_digits()):
                if _NUMERALS.search(plain.text, span.start, span.end):
                    yield span

    def _in_runs(self, text: str) -> Iterator[Span]:
        for run in _RUN.finditer(text):
            if run.end() - run.start() >= 8:
                yield from self._in_run(text, run)

    def _in_run(self, text: str, run: re.Match[str]) -> Iterator[Span]:
        """Numbers made of whole groups of a run of digits."""
        groups = [match.span() for match in _GROUP.finditer(text, run.start(), run.end())]
        usual_gaps = [
            _USUAL_GAP.fullmatch(text, end, begin) is not None
            for (_, end), (begin, _) in itertools.pairwise(groups)
        ]
        for first, (start, _) in enumerate(groups):
            if _goes_on(text, start - 1):
                continue
            plus = start > 0 and text[start - 1] == "+"
            digits, smallest, usual = "", 20, True
            found: Span | None = None
            for last in range(first, len(groups)):
                begin, end = groups[last]
                digits += text[begin:end]
                usual = usual and (last == first or usual_gaps[last - 1])
                alone = first == 0 and last == len(groups) - 1
                if len(digits) > 19 or end - start > _LONGEST_NUMBER - 4:
                    break
                if plus or _may_be(digits, smallest, usual, alone):
                    parts = groups[first : last + 1]
                    gaps = [text[after:one] for (_, after), (one, _) in itertools.pairwise(parts)]
                    number = _Number([text[one:after] for one, after in parts], gaps, plus, alone)
                    if not _goes_on(text, end) and (kind := self._kind(number)) is not None:
                        found = Span(start - plus, end, kind)
                smallest = min(smallest, end - begin)
            if found is not None:
                yield found

    def _kind(self, number: _Number) -> str | None:
        checks = (("identity_card", _identity_card), ("bank_card", _bank_card), ("phone", _phone))
        return next((kind for kind, check in checks if kind in self._kinds and check(number)), None)


class _Number(NamedTuple):
    """Groups of digits that may be one number."""

    groups: Sequence[str]
    gaps: Sequence[str]
    plus: bool
    """A plus stands before it."""
    alone: bool
    """No other digits stand near."""

    @property
    def digits(self) -> str:
        return "".join(self.groups)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self.groups))

    @property
    def usual(self) -> bool:
        """It is grouped as numbers are."""
        return all(_USUAL_GAP.fullmatch(gap) for gap in self.gaps)

    @property
    def regular(self) -> bool:
        """All that stands between its groups is the same, but for spaces and marks."""
        return self.alone and len({_MARKS.sub("", gap) for gap in self.gaps}) == 1


def _may_be(digits: str, smallest: int, usual: bool, alone: bool) -> bool:
    """A quick look; `smallest`: digits of the smallest group but for the last; `usual`: see `_Number`."""
    count = len(digits)
    if alone or (count == 18 and digits[6:8] in ("19", "20")):
        return count >= 10
    return usual and (smallest >= 3 or (smallest == 2 and count in (11, 13, 15))) and count >= 10


def _goes_on(text: str, at: int) -> bool:
    """Whether there is a letter of an alphabet, or another digit: not one of a script without spaces."""
    return 0 <= at < len(text) and (character := text[at]).isalnum() and not is_wide(character)


def _identity_card(number: _Number) -> bool:
    return is_identity_card(number.digits)


def _bank_card(number: _Number) -> bool:
    *groups, last = number.lengths
    if groups:
        even = len(set(groups)) == 1 and last <= groups[0]
        if not (min(groups) >= 3 or (even and number.alone)):
            return False
        if not (number.usual or number.regular):
            return False
    return is_bank_card(number.digits)


def _phone(number: _Number) -> bool:
    lengths, gaps, digits = number.lengths, number.gaps, number.digits
    if number.plus and gaps != ["."] and not any(set(gap) & set(",，\n") for gap in gaps):
        return is_phone(digits, international=True)
    if len(lengths) == 1:
        return is_phone(digits)
    if number.usual and ("." not in gaps or len(set(gaps)) == 1):
        if is_phone(digits):
            return min(lengths) >= 2 or (number.alone and max(lengths) == 1)
        return _is_national(number)
    if not number.regular or not is_phone(digits):
        return False
    if number.groups[0] in ("86", "0086"):
        lengths = lengths[1:]
    return lengths in ((11,), (3, 4, 4), (3, 8), (7, 4)) or max(lengths) == 1


def _is_national(number: _Number) -> bool:
    """A number of North America, or of a line in China, that is grouped as people there do."""
    groups, lengths, gaps = number.groups, number.lengths, list(number.gaps)
    if lengths in ((3, 8), (4, 8), (3, 7), (4, 7)):
        return groups[0][0] == "0" and groups[0][1] != "0" and groups[1][0] in "23456789" and "." not in gaps
    if lengths == (1, 3, 3, 4) and groups[0] == "1":
        groups, lengths, gaps = groups[1:], lengths[1:], gaps[1:]
    if lengths != (3, 3, 4) or not number.alone:
        return False
    return gaps in (["-", "-"], [".", "."], [") ", "-"], [")", "-"], [") ", " "]) and all(
        group[0] in "23456789" for group in groups[:2]
    )
