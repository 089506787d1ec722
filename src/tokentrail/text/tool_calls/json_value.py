"""Where a JSON object ends."""

from __future__ import annotations


class JsonObject:
    """Passes on the characters of one JSON object; space before it and everything behind it are left out."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    @property
    def begun(self) -> bool:
        return self.done or self._depth > 0

    @property
    def in_string(self) -> bool:
        return self._in_string and not self.done

    def push(self, character: str) -> str:
        if self.done or (self._depth == 0 and character != "{"):
            return ""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.done = self._depth == 0
        return character
