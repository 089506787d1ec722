"""Finding special tokens in text: the text is cut at them before anything else looks at it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

_SPACE = re.compile(r"[ \t\n\v\f\r]*")


class SpecialTokenSplitter:
    """Cuts text at the texts of given tokens: leftmost first, and the longest where several start."""

    def __init__(self, ids: Mapping[str, int], rstrip: Collection[int] = ()) -> None:
        """`rstrip`: those that take the white space behind them along."""
        self.ids = dict(ids)
        self._rstrip = frozenset(rstrip)
        lengths: dict[str, set[int]] = {}
        for text in self.ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(group, reverse=True) for first, group in lengths.items()}
        # A hash look-up at each place where a first character occurs: with thousands of special tokens that
        # is quicker to build than one large alternation, and as quick to run.
        self._first = (
            re.compile("[" + "".join(map(re.escape, self._lengths)) + "]") if self._lengths else None
        )

    def split(self, text: str) -> Iterator[str | int]:
        """Yield, in order, pieces of ordinary text (never empty) and the ids of special tokens."""
        start = 0
        if self._first is not None:
            ids, lengths, search = self.ids, self._lengths, self._first.search
            match = search(text)
            while match:
                position = match.start()
                end = position + 1
                for length in lengths[match.group()]:
                    id = ids.get(text[position : position + length])
                    if id is not None:
                        if position > start:
                            yield text[start:position]
                        yield id
                        start = end = position + length
                        if id in self._rstrip and (space := _SPACE.match(text, end)):
                            start = end = space.end()
                        break
                match = search(text, end)
        if start < len(text):
            yield text[start:]
