"""What a page shows of a text that is HTML: `d<b>a</b>mn` and `&#100;amn` are read as a word.

Watchers look at the text as it is, and once more as it is shown: what is forbidden may stand in the marks themselves.
"""

from __future__ import annotations

import bisect
import html
import re
from collections.abc import Callable

from tokentrail.gateway.filters.spans import Span, Watcher, Window

_LONGEST_TAG = 100
"""Characters between its brackets."""
_TAG = rf"<(?=[/!]?[A-Za-z-])[^<>]{{1,{_LONGEST_TAG}}}>"
_REFERENCE = r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8});"
_MARK = re.compile(f"{_TAG}|{_REFERENCE}")
_TAG_BEGUN = re.compile(rf"<(?:[/!]?\Z|(?=[/!]?[A-Za-z-])[^<>]{{1,{_LONGEST_TAG}}}\Z)")
_REFERENCE_BEGUN = re.compile(r"&#?[0-9A-Za-z]{0,8}\Z")
_TAG_GOES_ON = re.compile(r"[^<>]*")
_APART = re.compile(
    r"</?(?:address|article|blockquote|br|dd|div|dl|dt|fieldset|figure|footer|form|h[1-6]|header|hr|li|main|nav|ol|option"
    r"|p|pre|section|table|tbody|td|tfoot|th|thead|tr|ul)\b",
    re.IGNORECASE,
)
"""Tags that stand for a line's end; others show nothing."""


class SeeingThroughMarkup:
    """See the module."""

    def __init__(self, watch: Callable[[], Watcher]) -> None:
        """`watch`: how the rule watches a text."""
        self._watch = watch
        self._as_written = watch()
        self._marks: list[tuple[int, int]] = []
        """Of the last look, in characters of the whole text."""
        self._tag: int | None = None
        """Where a tag began that has not ended yet."""

    def look(self, window: Window) -> tuple[list[Span], int]:
        spans, open_from = self._as_written.look(window)
        text, base, final = window
        if "<" not in text and "&" not in text and self._tag is None and not self._marks:
            return spans, open_from
        shown = self._shown(window)
        if shown.text == text:
            return spans, open_from
        # Places move when marks before them are known, so nothing is kept from look to look.
        found, shown_from = self._watch().look(Window(shown.text, 0, final))
        spans += [Span(base + shown.start(start), base + shown.end(end), what) for start, end, what in found]
        return spans, min(open_from, base + shown.open_from(shown_from))

    def _shown(self, window: Window) -> _Shown:
        text, base, final = window
        at = self._resume(window)
        marks = [(0, at, "")] if at else []
        for mark in _MARK.finditer(text, at):
            marks.append((*mark.span(), _shown_for(mark.group())))
            at = mark.end()
        end = held = len(text)
        if self._tag is not None:
            end = 0
        elif not final:
            if (begun := _TAG_BEGUN.search(text, max(at, end - _LONGEST_TAG - 1))) is not None:
                self._tag = base + begun.start()
                end = begun.start()
            elif (begun := _REFERENCE_BEGUN.search(text, max(at, end - 10))) is not None:
                end = held = begun.start()
        self._marks = [(base + start, base + after) for start, after, _ in marks]
        return _Shown(text, marks, end, held)

    def _resume(self, window: Window) -> int:
        """The end of a mark that began before the window."""
        text, base, final = window
        tag, self._tag = self._tag, None
        for start, end in self._marks:
            if start < base < end:
                return end - base
        if tag is not None and tag < base:
            end = _TAG_GOES_ON.match(text).end()  # type: ignore[union-attr]
            if base + end - tag <= _LONGEST_TAG + 1:
                if text[end : end + 1] == ">":
                    return end + 1
                if end == len(text) and not final:
                    self._tag = tag
        return 0


def _shown_for(mark: str) -> str:
    if mark[0] == "&":
        shown = html.unescape(mark)
        return shown if len(shown) == 1 else mark
    return "\n" if _APART.match(mark) else ""


class _Shown:
    """A text as it is shown, up to `end`."""

    def __init__(self, original: str, marks: list[tuple[int, int, str]], end: int, held: int) -> None:
        """`marks`: where each begins and ends, and what is shown for it; `held`: behind it may be a mark that shows
        something.
        """
        parts: list[str] = []
        self._starts: list[int] = []
        """Of pieces, in `text`."""
        self._pieces: list[tuple[int, int, bool]] = []
        """Where they begin and end in the original; and whether one is a mark."""
        self._held = held
        at = length = 0
        for start, after, shown in [*marks, (end, end, "")]:
            for first, last, piece, is_mark in (
                (at, start, original[at:start], False),
                (start, after, shown, True),
            ):
                if piece:
                    self._starts.append(length)
                    self._pieces.append((first, last, is_mark))
                    parts.append(piece)
                    length += len(piece)
            at = after
        self.text = "".join(parts)

    def start(self, at: int) -> int:
        """Where a character begins in the original."""
        piece = bisect.bisect_right(self._starts, at) - 1
        first, _, is_mark = self._pieces[piece]
        return first if is_mark else first + at - self._starts[piece]

    def end(self, at: int) -> int:
        """Where the character before this place ends in the original."""
        piece = bisect.bisect_right(self._starts, at - 1) - 1
        first, last, is_mark = self._pieces[piece]
        return last if is_mark else first + at - self._starts[piece]

    def open_from(self, at: int) -> int:
        return self.start(at) if at < len(self.text) else self._held
