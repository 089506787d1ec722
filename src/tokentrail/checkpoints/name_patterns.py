"""Regular expressions of strangers over names of layers, matched in time that grows with the name alone.

Python's own `re` tries alternatives one after the other: `(.*)*x`, in a configuration that somebody downloads, takes it
longer than the universe is old. Here a pattern becomes an automaton, which follows all alternatives at once (Thompson
1968), and whose sets of states are remembered: a step is one look-up.

Known are characters, `.`, classes, escapes, groups, `|`, quantifiers, `^`, `$`, and looking ahead at the start.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import lru_cache

MAX_STATES = 4096
MAX_REPEAT = 256
MAX_DEPTH = 50
_REMEMBERED = 4096

_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_SPACE = frozenset(string.whitespace)
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}

Accepts = Callable[[str], bool]


class UnknownPattern(ValueError):
    """Its text says what is not known."""


class NamePattern:
    """One pattern. As with `re.match`, what is behind a match does not matter."""

    def __init__(self, pattern: str) -> None:
        """Raises `UnknownPattern`."""
        self._conditions: list[tuple[bool, NamePattern]] = []
        rest = pattern.removeprefix("^")
        while rest.startswith(("(?!", "(?=")):
            end = _closing(rest)
            self._conditions.append((rest[2] == "=", NamePattern(rest[3:end])))
            rest = rest[end + 1 :]
        self._edges: list[tuple[Accepts, int] | None] = []
        self._free: list[list[int]] = []
        """To which states each state leads without a character."""
        self._ends: set[int] = set()
        """States passed only at the end of the name."""
        first, last = _Parser(rest, self).parse()
        self._last = last
        self._start = self._closed({first})
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        if any(pattern.matches(name) != wanted for wanted, pattern in self._conditions):
            return False
        states = self._start
        for character in name:
            if self._last in states:
                return True
            if not states:
                return False
            step = self._known.get((states, character))
            if step is None:
                if len(self._known) > _REMEMBERED:
                    self._known.clear()
                step = self._known[states, character] = self._step(states, character)
            states = step
        return self._last in self._closed(set(states), at_end=True)

    def state(self) -> int:
        if len(self._edges) >= MAX_STATES:
            raise UnknownPattern("too many repetitions")
        self._edges.append(None)
        self._free.append([])
        return len(self._edges) - 1

    def edge(self, source: int, accepts: Accepts, target: int) -> None:
        self._edges[source] = accepts, target

    def free(self, source: int, target: int, *, at_end: bool = False) -> None:
        self._free[source].append(target)
        if at_end:
            self._ends.add(source)

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        edges = (self._edges[state] for state in states)
        return self._closed({edge[1] for edge in edges if edge is not None and edge[0](character)})

    def _closed(self, states: set[int], *, at_end: bool = False) -> frozenset[int]:
        """The states and those that they lead to without a character."""
        pending = list(states)
        while pending:
            state = pending.pop()
            if state in self._ends and not at_end:
                continue
            for target in self._free[state]:
                if target not in states:
                    states.add(target)
                    pending.append(target)
        return frozenset(states)


@lru_cache(maxsize=256)
def name_pattern(pattern: str) -> NamePattern:
    """Raises `UnknownPattern`."""
    return NamePattern(pattern)


def _closing(text: str) -> int:
    """Where the group ends with which `text` begins."""
    depth, at = 0, 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "(":
            depth += 1
        elif text[at] == ")":
            depth -= 1
            if not depth:
                return at
        at += 1
    raise UnknownPattern("a group that does not end")


class _Parser:
    """Recursive descent; each part becomes states (first, last) of the automaton."""

    def __init__(self, text: str, automaton: NamePattern) -> None:
        self._text, self._at, self._to = text, 0, automaton
        self._depth = 0

    def parse(self) -> tuple[int, int]:
        part = self._alternatives()
        if self._at < len(self._text):
            raise UnknownPattern("a ) too many")
        return part

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise UnknownPattern("an end too early")
        self._at += 1
        return character

    def _alternatives(self) -> tuple[int, int]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnknownPattern("groups nested too deeply")
        first, last = self._to.state(), self._to.state()
        while True:
            begin, end = self._sequence()
            self._to.free(first, begin)
            self._to.free(end, last)
            if self._peek() != "|":
                break
            self._at += 1
        self._depth -= 1
        return first, last

    def _sequence(self) -> tuple[int, int]:
        first = last = self._to.state()
        while self._peek() and self._peek() not in "|)":
            begin, end = self._repeated()
            self._to.free(last, begin)
            last = end
        return first, last

    def _repeated(self) -> tuple[int, int]:
        start = self._at
        part = self._single()
        low, high = self._quantifier()
        if (low, high) == (1, 1):
            return part
        after = self._at
        first = last = self._to.state()
        for count in range(max(low, high or 0, 1)):
            if count:  # the same once more
                self._at = start
                part = self._single()
            self._to.free(last, part[0])
            if count >= low:
                self._to.free(last, part[1])
            last = part[1]
        self._at = after
        if high is None:
            self._to.free(part[1], part[0])
        if high == 0:
            first = self._to.state()
            return first, first
        return first, last

    def _quantifier(self) -> tuple[int, int | None]:
        character = self._peek()
        bounds: tuple[int, int | None] = (1, 1)
        if character and character in "*+?":
            self._at += 1
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        elif character == "{":
            end = self._text.find("}", self._at)
            low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
            if end < 0 or not low.isdigit() or not (high.isdigit() or not high):
                raise UnknownPattern("a { without numbers")
            self._at = end + 1
            bounds = int(low[:9]), (int(high[:9]) if high else None if comma else int(low[:9]))
            if max(bounds[0], bounds[1] or 0) > MAX_REPEAT or (
                bounds[1] is not None and bounds[1] < bounds[0]
            ):
                raise UnknownPattern("a repetition out of bounds")
        else:
            return bounds
        if self._peek() == "?":  # whether as few as possible: the same names match
            self._at += 1
        if self._peek() and self._peek() in "*+?{":
            raise UnknownPattern("a quantifier of a quantifier")
        return bounds

    def _single(self) -> tuple[int, int]:
        character = self._take()
        if character == "(":
            if self._peek() == "?":
                self._at += 1
                if self._take() != ":":
                    raise UnknownPattern("a group of a special kind")
            part = self._alternatives()
            if self._take() != ")":
                raise UnknownPattern("a group that does not end")
            return part
        first, last = self._to.state(), self._to.state()
        if character == "$":
            self._to.free(first, last, at_end=True)
        elif character == "^":
            raise UnknownPattern("a ^ that is not at the start")
        elif character in "*+?{":
            raise UnknownPattern("a quantifier of nothing")
        else:
            self._to.edge(first, self._accepts(character), last)
        return first, last

    def _accepts(self, character: str) -> Accepts:
        if character == ".":
            return lambda c: c != "\n"
        if character == "[":
            return self._class()
        if character == "\\":
            members, negated = self._escaped()
            return lambda c: (c in members) != negated
        return lambda c: c == character

    def _escaped(self) -> tuple[frozenset[str], bool]:
        """(characters, whether all others are meant)."""
        kind = self._take()
        if kind.lower() in _CLASSES:
            return _CLASSES[kind.lower()], kind.isupper()
        if kind.isalnum():
            raise UnknownPattern(f"\\{kind}")
        return frozenset(kind), False

    def _class(self) -> Accepts:
        negated = self._peek() == "^"
        self._at += negated
        members: set[str] = set()
        ranges: list[tuple[str, str]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            character = self._take()
            if character == "\\":
                escaped, other = self._escaped()
                if other:
                    raise UnknownPattern("a class of all others within a class")
                members |= escaped
            elif self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                ranges.append((character, self._take()))
            else:
                members.add(character)
        self._at += 1
        return lambda c: (c in members or any(low <= c <= high for low, high in ranges)) != negated
