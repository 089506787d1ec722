"""Where an answer that fills in code ends: at a line that is indented less, or with a line when time is up."""

from __future__ import annotations

import time
from collections.abc import Callable


class LineLimit:
    """Text that comes in pieces, until a line ends it. How it is cut matters to `seconds` alone."""

    def __init__(
        self, indent: int = 0, seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`indent`: ends the text where a line, not the first one, that is not empty begins with fewer spaces and
        tabs. `seconds`: ends it behind the first line that is complete so long after the first piece.
        """
        self._indent, self._seconds, self._clock = indent, seconds, clock
        self._started: float | None = None
        self._begun: int | None = None
        """Spaces and tabs at the beginning of the line so far; None: it has more than those, or is the first one."""

    def push(self, text: str) -> tuple[str, bool]:
        """What of `text` is part of it, and whether it ends there."""
        late = False
        if self._seconds is not None:
            now = self._clock()
            self._started = now if self._started is None else self._started
            late = now - self._started > self._seconds
        for index, character in enumerate(text):
            if character == "\n":
                if late:
                    return text[: index + 1], True
                self._begun = 0
            elif self._begun is not None:
                if character in " \t":
                    self._begun += 1
                elif character != "\r":
                    if self._begun < self._indent:
                        return text[:index], True
                    self._begun = None
        return text, False
