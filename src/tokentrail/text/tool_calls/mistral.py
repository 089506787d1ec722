"""Mistral: `[TOOL_CALLS]` before a JSON list of calls, or, since 2025, before each name."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrail.text.markers import MarkerSearch
from tokentrail.text.tool_calls.base import (
    Arguments,
    CallStart,
    Event,
    Text,
    Tool,
    ToolFormat,
    ToolGrammar,
    ToolParser,
    merged,
)
from tokentrail.text.tool_calls.json_call import JsonCall
from tokentrail.text.tool_calls.json_value import JsonObject

_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralFormat(ToolFormat):
    """`[TOOL_CALLS][{"name": …, "arguments": {…}}]` and `[TOOL_CALLS]name[ARGS]{…}`."""

    name = "mistral"
    markers = (_CALLS, _ARGS, _ID)
    short_ids = True

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return MistralParser()

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        return ToolGrammar(
            before='{"name": ',
            middle=', "arguments": ',
            after="}",
            begin=f"{_CALLS}[",
            between=", ",
            end="]",
        )


class MistralNamedFormat(MistralFormat):
    """The same, for models that write `[TOOL_CALLS]name[ARGS]{…}` (since 2025); what is read is either."""

    name = "mistral_v11"

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        return ToolGrammar(before=_CALLS, middle=_ARGS, after="", quoted=False)


class MistralParser(ToolParser):
    def __init__(self) -> None:
        self._search = MarkerSearch()
        self._in_calls = False
        self._space = ""
        self._call: JsonCall | None = None
        self._name = ""
        self._object: JsonObject | None = None

    def push(self, text: str) -> list[Event]:
        self._search.push(text)
        return merged(self._read(final=False))

    def flush(self) -> list[Event]:
        events = self._read(final=True)
        if not self._in_calls and self._space:
            events.append(Text(self._space))
        if self._call is not None and not self._call.named:
            events.append(Text(_CALLS + self._call.raw))
        if self._name.strip("[], \n\t"):
            events.append(Text(_CALLS + self._name))
        return merged(events)

    def _read(self, *, final: bool) -> list[Event]:
        events: list[Event] = []
        while True:
            while self._in_string() and len(self._search):
                events += self._inside(self._search.take(1))
            if self._in_string():
                return events
            # A quote may begin a text in which marks are none.
            markers = (_CALLS, _ARGS, _ID, '"') if self._in_calls else (_CALLS,)
            before, found = self._search.until(markers, final=final)
            if self._in_calls:
                for character in before + ('"' if found == '"' else ""):
                    events += self._inside(character)
            else:
                text = self._space + before
                shown = text.rstrip()
                self._space = text[len(shown) :]
                events.append(Text(shown))
            if found is None:
                return events
            if found == _CALLS:
                self._in_calls, self._space = True, ""
                self._name, self._call, self._object = "", None, None
            elif found == _ARGS and self._name.strip():
                # The name may be followed by an id of the model's own, which clients do not need.
                events.append(CallStart(self._name.split(_ID)[0].strip()))
                self._name, self._object = "", JsonObject()
            elif found == _ID:
                self._name += _ID

    def _in_string(self) -> bool:
        value = self._call or self._object
        return value is not None and value.in_string

    def _inside(self, character: str) -> list[Event]:
        if self._object is not None:
            piece = self._object.push(character)
            if self._object.done:
                self._object = None
            return [Arguments(piece)]
        if self._call is not None:
            events = self._call.push(character)
            if self._call.done or (self._call.broken and self._call.named):
                self._call = None
            return events
        if character == "{" and not self._name.strip("[], \n\t"):
            self._name, self._call = "", JsonCall()
            return self._call.push(character)
        if character == "{":
            # `name{…}`: without a mark between them.
            name, self._name = self._name.strip(), ""
            self._object = JsonObject()
            return [CallStart(name), Arguments(self._object.push(character))]
        self._name += character
        return []
