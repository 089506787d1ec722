"""Marks in a stream of text: found across the borders of its pieces, held back only while they may be one."""

from __future__ import annotations

from collections.abc import Sequence


class MarkerSearch:
    """A buffer of text that was not consumed yet, and what can be said about marks in it.

    What it finds does not depend on how the text came in pieces: a mark that begins first wins, and of those that begin
    at the same character the longest. (A `StopBuffer` ends at the match that is complete first; here text goes on.)
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        """What stands before has been consumed."""

    def push(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def __len__(self) -> int:
        return len(self._text) - self._at

    def rest(self) -> str:
        return self._text[self._at :]

    def take(self, count: int | None = None) -> str:
        """Consume the next `count` characters, or all."""
        end = len(self._text) if count is None else self._at + count
        taken = self._text[self._at : end]
        self._at = min(end, len(self._text))
        return taken

    def until(self, markers: Sequence[str], *, final: bool = False) -> tuple[str, str | None]:
        """Consume text up to the first mark and the mark itself: (text before it, mark). None: there is no whole mark
        yet, and the text is what certainly stands before any. `final`: nothing follows.
        """
        text, first = self._text, self._at
        at, found = len(text), None
        for marker in markers:
            start = text.find(marker, first)
            if start >= 0 and (
                start < at or (start == at and found is not None and len(marker) > len(found))
            ):
                at, found = start, marker
        if not final:
            # A longer or an earlier mark may still be on its way.
            open_at = len(text)
            for marker in markers:
                for length in range(min(len(marker) - 1, len(text) - first), 0, -1):
                    if text.endswith(marker[:length]):
                        open_at = min(open_at, len(text) - length)
                        break
            if open_at < at or (found is not None and open_at == at):
                return self.take(open_at - first), None
        before = self.take(at - first)
        if found is not None:
            self.take(len(found))
        return before, found
