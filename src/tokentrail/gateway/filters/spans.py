"""Where a rule found something, and how it watches a text that is still being written."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Span(NamedTuple):
    """Characters `start` to `end` of a text."""

    start: int
    end: int
    what: str = ""
    """What was found, in the rule's own words. Not for logs: it may be what the user wrote."""


class Window(NamedTuple):
    """The part of a text that can still be looked at."""

    text: str
    base: int
    """Characters of the whole text before it."""
    final: bool
    """Nothing follows."""


class Watcher(Protocol):
    """One rule on one text. Fed the whole text at once or as it grows, it finds the same."""

    def look(self, window: Window) -> tuple[list[Span], int]:
        """Spans of the whole text that are certain now (some may be told again), and from where on the text may be
        part of something that is not certain yet: before that, nothing more will be found to begin.
        """
        ...


class Finder(Protocol):
    """What a rule looks for."""

    def watch(self) -> Watcher: ...


def find(finder: Finder, text: str) -> list[Span]:
    """All that `finder` finds in a whole text."""
    return finder.watch().look(Window(text, 0, True))[0]
