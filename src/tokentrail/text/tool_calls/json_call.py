"""One call as a JSON object, read character by character: `{"name": …, "arguments": {…}}`."""

from __future__ import annotations

import json
from enum import Enum, auto

from tokentrail.text.tool_calls.base import Arguments, CallStart, Event

NAME_KEYS = frozenset({"name", "function", "tool_name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args"})


class _At(Enum):
    START = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    DONE = auto()
    BROKEN = auto()


class JsonCall:
    """Gives out the name once it is known, and the characters of the arguments as they come.

    Arguments that come before the name wait for it. Arguments that are a text (some models write them so) are taken for
    the JSON in that text. `raw` is all that was read, for when it turns out not to be a call.
    """

    def __init__(self) -> None:
        self.raw = ""
        self.named = False
        self._at = _At.START
        self._key = ""
        self._value = ""
        """Of the key or value at hand, as it is written."""
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._early = ""
        """Arguments that came before the name."""
        self._has_arguments = False

    @property
    def done(self) -> bool:
        return self._at is _At.DONE

    @property
    def in_string(self) -> bool:
        return self._at is _At.KEY or (self._at is _At.VALUE and self._in_string)

    @property
    def broken(self) -> bool:
        """This is no call, or no JSON."""
        return self._at is _At.BROKEN

    def push(self, character: str) -> list[Event]:
        self.raw += character
        at = self._at
        if at is _At.VALUE:
            return self._in_value(character)
        if at is _At.KEY:
            self._in_key(character)
        elif character.isspace():
            pass
        elif at is _At.START:
            self._at = _At.COMMA if character == "{" else _At.BROKEN
            self._value = ""
        elif at is _At.COLON:
            self._at = _At.VALUE if character == ":" else _At.BROKEN
            self._value, self._depth = "", 0
        elif at is _At.COMMA:
            if character == '"':
                self._at, self._value, self._escaped = _At.KEY, '"', False
            elif character == "}":
                return self._close()
            elif character != ",":
                self._at = _At.BROKEN
        return []

    def _close(self) -> list[Event]:
        self._at = _At.DONE if self.named else _At.BROKEN
        # A call without arguments has none.
        return [] if self._has_arguments or not self.named else [Arguments("{}")]

    def _in_key(self, character: str) -> None:
        self._value += character
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._key = _decoded(self._value) or ""
            self._at = _At.COLON

    def _in_value(self, character: str) -> list[Event]:
        if not self._value and character.isspace():
            return []
        if not self._in_string and self._depth == 0 and self._value and character in ",}":
            # A number or a word, which ends with what follows it.
            events = self._value_ended()
            self._at = _At.COMMA
            return [*events, *(self._close() if character == "}" else [])]
        self._value += character
        ended = False
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                ended = self._depth == 0
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            ended = self._depth == 0
            if self._depth < 0:
                self._at = _At.BROKEN
                return []
        events = self._argument_pieces(character)
        if ended:
            events += self._value_ended()
            self._at = _At.COMMA
        return events

    def _argument_pieces(self, character: str) -> list[Event]:
        if self._key not in ARGUMENT_KEYS or self._value[0] != "{":
            return []
        self._has_arguments = True
        if not self.named:
            self._early += character
            return []
        return [Arguments(character)]

    def _value_ended(self) -> list[Event]:
        value, key = self._value.strip(), self._key
        if key in NAME_KEYS and not self.named and value[:1] == '"':
            name = _decoded(value)
            if not name:
                self._at = _At.BROKEN
                return []
            self.named = True
            early, self._early = self._early, ""
            return [CallStart(name), *([Arguments(early)] if early else [])]
        if key in ARGUMENT_KEYS and value[:1] == '"' and not self._has_arguments:
            self._has_arguments = True
            text = _decoded(value) or "{}"
            if not self.named:
                self._early = text
                return []
            return [Arguments(text)]
        return []


def _decoded(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
