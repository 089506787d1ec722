"""Regular expressions, by RE2: linear in the text's length, whatever is written in them.

A pattern that watches a stream must say how long a match can be. Most say so themselves; of those that do not (`.*`),
the rule has to, or the whole answer is held back until it is written.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import re2

from tokentrail.gateway.filters.spans import Span, Window

_UNBOUNDED = 2**20


class Pattern:
    """A regular expression in RE2's syntax (https://github.com/google/re2/wiki/Syntax)."""

    def __init__(self, pattern: str, *, longest: int | None = None, ignore_case: bool = True) -> None:
        """`longest`: characters of a match at most; None: as the pattern says itself.

        Raises `ValueError` for a pattern that RE2 does not take, or that matches nothing at all.
        """
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

    def watch(self) -> _PatternWatcher:
        return _PatternWatcher(self)

    def find(self, text: str, start: int) -> Any:
        return self._compiled.finditer(text[start:] if start else text)


def _width(pattern: str) -> int | None:
    """Characters of the longest match; None: there is no longest, or the pattern is RE2's own."""
    sre: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    try:
        width = int(sre.parse(pattern).getwidth()[1])
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
        for match in self._pattern.find(text, start):
            first, last = base + start + match.start(), base + start + match.end()
            if first >= certain and not final:
                break
            spans.append(Span(first, last, match.group()))
            self._next = last
        self._next = max(self._next, certain)
        return spans, self._next
