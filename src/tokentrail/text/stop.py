"""Stop strings in streamed text: found across token borders, held back only while they may match."""

from __future__ import annotations

from collections.abc import Sequence


class StopBuffer:
    """A hold-back buffer in front of a stream of text.

    The match that is complete first wins, as if characters came one by one; of several that are complete at
    the same character, the longest wins, so that no part of a stop string is shown. This does not depend on
    how the text is cut into pieces. (OpenAI and vLLM end an answer at the first stop sequence that appears in
    it; vLLM looks once per token and takes the first of its list, which for most stop strings is the same.)

    It is the automaton of Aho and Corasick (1975): its state is the longest end of the text that begins a
    stop string, which is just what must be held back. A character costs amortized constant time.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """`stops`: strings, none empty. `include_stop`: the matched stop string is part of the text."""
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self._include = include_stop
        self._matched: str | None = None
        self._held = ""
        self._state = 0
        # States as parallel lists; 0 is the start.
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._fallback = [0]
        self._match: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._fallback.append(0)
                self._match.append(None)
            state = following
        self._match[state] = stop

    def _link(self) -> None:
        """Breadth first: each state's fallback is the state of its longest proper suffix that is one."""
        queue = list(self._next[0].values())
        for state in queue:
            for character, following in self._next[state].items():
                self._fallback[following] = self._step(self._fallback[state], character)
                queue.append(following)
            if self._match[state] is None:
                self._match[state] = self._match[self._fallback[state]]

    def _step(self, state: int, character: str) -> int:
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fallback[state]

    def push(self, text: str) -> tuple[str, str | None]:
        """Add text; return what may be shown, and the stop string that was found, if any.

        After a match the stream is over: the text behind it is dropped, and so is everything pushed later.
        """
        if self._matched is not None:
            return "", self._matched
        if len(self._next) == 1:
            return text, None
        state = self._state
        for index, character in enumerate(text):
            state = self._step(state, character)
            stop = self._match[state]
            if stop is not None:
                self._matched, self._state = stop, 0
                seen = self._held + text[: index + 1]
                self._held = ""
                return (seen if self._include else seen[: len(seen) - len(stop)]), stop
        self._state = state
        seen = self._held + text
        shown = len(seen) - self._depth[state]
        self._held = seen[shown:]
        return seen[:shown], None

    def flush(self) -> str:
        """End the stream: what was held back is text after all."""
        held, self._held, self._state = self._held, "", 0
        return held
