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

    def push(self, text: str) -> None:
        self._text += text

    def __len__(self) -> int:
        return len(self._text)

    def peek(self, count: int) -> str:
        return self._text[:count]

    def take(self, count: int | None = None) -> str:
        """Consume the next `count` characters, or all."""
        count = len(self._text) if count is None else count
        taken, self._text = self._text[:count], self._text[count:]
        return taken

    def until(self, markers: Sequence[str], *, final: bool = False) -> tuple[str, str | None]:
        """Consume text up to the first mark and the mark itself: (text before it, mark). None: there is no whole mark
        yet, and the text is what certainly stands before any. `final`: nothing follows.
        """
        text = self._text
        at, found = len(text), None
        for marker in markers:
            start = text.find(marker)
            if start >= 0 and (
                start < at or (start == at and found is not None and len(marker) > len(found))
            ):
                at, found = start, marker
        if not final:
            # A longer or an earlier mark may still be on its way.
            open_at = len(text)
            for marker in markers:
                for length in range(min(len(marker) - 1, len(text)), 0, -1):
                    if text.endswith(marker[:length]):
                        open_at = min(open_at, len(text) - length)
                        break
            if open_at < at or (found is not None and open_at == at):
                return self.take(open_at), None
        before = self.take(at)
        if found is not None:
            self.take(len(found))
        return before, found
