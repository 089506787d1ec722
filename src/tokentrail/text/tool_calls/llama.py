"""Llama 3: the whole answer is one call in JSON, or several with semicolons or line ends between them."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrail.text.tool_calls.base import Event, Text, Tool, ToolFormat, ToolGrammar, ToolParser, merged
from tokentrail.text.tool_calls.json_call import JsonCall

_TAG = "<|python_tag|>"


class Llama3JsonFormat(ToolFormat):
    """`{"name": …, "parameters": {…}}`, perhaps behind `<|python_tag|>`."""

    name = "llama3_json"
    markers = (_TAG,)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return BareJsonParser(listed=False)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        return ToolGrammar(before='{"name": ', middle=', "parameters": ', after="}", between="; ")


class JsonListFormat(ToolFormat):
    """A JSON list of calls, as vLLM has it for required calls: for models whose own way is no JSON."""

    name = "json"

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return BareJsonParser(listed=True)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        return ToolGrammar(
            before='{"name": ', middle=', "arguments": ', after="}", begin="[", between=", ", end="]"
        )


class BareJsonParser(ToolParser):
    """Calls without marks around them. An answer that begins otherwise is text to its end."""

    def __init__(self, *, listed: bool) -> None:
        self._between = " \t\r\n;," + ("[]" if listed else "")
        self._start = ""
        """Read, and not known to be text or the beginning of a call."""
        self._tagged = False
        self._call: JsonCall | None = None
        self._calls = 0
        self._is_text = False

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for index, character in enumerate(text):
            if self._is_text:
                events.append(Text(text[index:]))
                break
            events += self._next(character)
        return merged(events)

    def _next(self, character: str) -> list[Event]:
        if self._call is not None:
            events = self._call.push(character)
            if self._call.broken and not self._call.named:
                return [*events, *self._turn_to_text()]
            if self._call.done or self._call.broken:
                self._calls += 1
                self._start, self._call = "", None
            return events
        if character == "{":
            self._call = JsonCall()
            return self._call.push(character)
        self._start += character
        rest = self._start.strip()
        if not self._tagged and rest and _TAG.startswith(rest):
            if rest == _TAG:
                self._tagged = True
                self._start = ""
            return []
        if character in self._between and (
            not rest or self._calls or all(one in self._between for one in rest)
        ):
            return []
        return self._turn_to_text()

    def _turn_to_text(self) -> list[Event]:
        """What was read since the last call is none. Behind calls it is dropped only if nothing but space."""
        self._is_text = True
        raw = self._start + (self._call.raw if self._call is not None else "")
        self._call, self._start = None, ""
        return [Text(raw)] if raw.strip() else []

    def flush(self) -> list[Event]:
        if self._call is not None and self._call.named:
            return []
        if self._calls and self._call is None and all(one in self._between for one in self._start):
            return []
        return merged(self._turn_to_text())
