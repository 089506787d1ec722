"""Regular expressions, by RE2: linear in the text's length, whatever is written in them.

A pattern that watches a stream must say how long a match can be. Most say so themselves; of those that do not (`.*`),
the rule has to, or the whole answer is held back until it is written.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

from tokentrail.gateway.filters.spans import Span, Window
from tokentrail.gateway.libraries import library

_UNBOUNDED = 2**20
_LONGEST_OPENING = 16
"""Characters of a match's beginning that are looked at."""


class Pattern:
    """A regular expression in RE2's syntax (https://github.com/google/re2/wiki/Syntax)."""

    def __init__(self, pattern: str, *, longest: int | None = None, ignore_case: bool = True) -> None:
        """`longest`: characters of a match at most; None: as the pattern says itself.

        Raises `ValueError` for a pattern that RE2 does not take, or that matches nothing at all.
        """
        re2 = library("re2")
        options = re2.Options()
        options.log_errors = False
        options.case_sensitive = not ignore_case
        try:
            self._compiled: Any = re2.compile(pattern, options)
        except re2.error as error:
            reason = error.args[0] if error.args else "it is not valid"
            said = reason.decode() if isinstance(reason, bytes) else str(reason)
            raise ValueError(f"{pattern!r} is not a regular expression that RE2 takes: {said}") from None
        if self._compiled.fullmatch("") is not None:
            raise ValueError(f"{pattern!r} matches the empty text, and so everywhere")
        self.longest = _width(pattern) if longest is None else longest
        """Characters that one match may take; None: no bound is known, so a stream waits for its end."""
        self._opening = _opening(pattern, ignore_case)

    def watch(self) -> _PatternWatcher:
        return _PatternWatcher(self)

    def find(self, text: str, start: int) -> Any:
        return self._compiled.finditer(text[start:] if start else text)

    @property
    def opening_known(self) -> bool:
        return self._opening is not None

    def may_open(self, text: str, start: int) -> int:
        """From where on a match that is not whole yet may begin."""
        if self._opening is None:
            return start
        found = self._opening.search(text, start)
        return len(text) if found is None else found.start()


_sre: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


def _parsed(pattern: str) -> Any:
    """By Python's parser. It does not know classes such as `[:digit:]`: they are any character here."""
    return _sre.parse(re.sub(r"\[:\^?[a-z]+:\]", r"\\s\\S", pattern))


def _opening(pattern: str, ignore_case: bool) -> re.Pattern[str] | None:
    """What every match begins with, as far as that is a fixed row of characters, or a part of it before the text's end;
    None: nothing is known.
    """
    try:
        parsed = _parsed(pattern)
    except Exception:  # what RE2 takes and Python does not
        return None
    row: list[str] = []
    ignore_case = ignore_case or bool(parsed.state.flags & re.IGNORECASE)
    for kind, value in list(parsed)[:_LONGEST_OPENING]:
        name = str(kind)
        if name == "LITERAL":
            row.append(re.escape(chr(value)))
        elif (
            name == "MAX_REPEAT"
            and value[0]
            and len(value[2]) == 1
            and str(value[2][0][0]) in ("LITERAL", "IN")
        ):
            one = _one(value[2][0])
            row += [one] * min(value[0], _LONGEST_OPENING) if one else []
            if value[0] != value[1] or not one:
                break
        elif name == "IN" and (one := _one((kind, value))):
            row.append(one)
        else:
            break
    if not row:
        return None
    nested = "".join(f"{one}(?:\\Z|" for one in row[:-1]) + row[-1] + ")" * (len(row) - 1)
    return re.compile(nested, re.IGNORECASE if ignore_case else 0)


def _one(item: Any) -> str | None:
    """One character, as a regular expression of Python's."""
    kind, value = item
    if str(kind) == "LITERAL":
        return re.escape(chr(value))
    parts: list[str] = []
    for name, inner in value:
        if str(name) == "NEGATE":
            parts.append("^")
        elif str(name) == "LITERAL":
            parts.append(re.escape(chr(inner)))
        elif str(name) == "RANGE":
            parts.append(f"{re.escape(chr(inner[0]))}-{re.escape(chr(inner[1]))}")
        else:  # \\d and the like, which are wider here than RE2's
            return r"[\s\S]"
    return f"[{''.join(parts)}]"


def _width(pattern: str) -> int | None:
    """Characters of the longest match; None: there is no longest, or the pattern is RE2's own."""
    try:
        width = int(_parsed(pattern).getwidth()[1])
    except Exception:  # what RE2 takes and Python does not
        return None
    return width if width < _UNBOUNDED else None


class _PatternWatcher:
    """Matches from left to right, none within another, as `finditer` gives them."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._next = 0
        """Characters of the whole text that are dealt with."""

    def look(self, window: Window) -> tuple[list[Span], int]:
        text, base, final = window
        longest = self._pattern.longest
        end = base + len(text)
        # A match that begins before this cannot grow any more; nor can its last character's neighbour change it.
        certain = end if final else (0 if longest is None else max(0, end - longest))
        spans: list[Span] = []
        start = max(0, self._next - base)
        opens = self._pattern.may_open(text, start)
        if opens == len(text) and self._pattern.opening_known:
            # Python looks for the beginning in less time than RE2 takes to be called.
            self._next = end
            return spans, end
        for match in self._pattern.find(text, start):
            first, last = base + start + match.start(), base + start + match.end()
            if first >= certain and not final:
                break
            spans.append(Span(first, last, match.group()))
            self._next = last
        self._next = max(self._next, certain)
        open_from = base + self._pattern.may_open(text, max(0, self._next - base))
        if not final:
            # What cannot begin a match is dealt with; what may be a match's rest is, too, for that begins earlier.
            self._next = max(self._next, open_from)
        return spans, end if final else self._next
