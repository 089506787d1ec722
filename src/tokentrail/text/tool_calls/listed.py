"""Formats that put a JSON list of calls behind a mark: Granite 3 and Cohere's Command."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrail.text.markers import MarkerSearch
from tokentrail.text.tool_calls.base import Event, Text, Tool, ToolFormat, ToolGrammar, ToolParser, merged
from tokentrail.text.tool_calls.json_call import JsonCall


class GraniteFormat(ToolFormat):
    """`<|tool_call|>[{"name": …, "arguments": {…}}]`, as Granite 3; Phi-4-mini has a mark behind the list, too."""

    name = "granite"
    begin, end = "<|tool_call|>", "<|/tool_call|>"
    markers = (begin, end)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return ListedParser(self.begin, self.end)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        return ToolGrammar('{"name": ', ', "arguments": ', "}", begin=f"{self.begin}[", between=", ", end="]")


class CommandFormat(ToolFormat):
    """`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": …, "parameters": {…}}]<|END_ACTION|>`: Command R7B and A."""

    name = "command_r"
    begin, end = "<|START_ACTION|>", "<|END_ACTION|>"
    markers = (begin, end)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return ListedParser(self.begin, self.end)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        return ToolGrammar(
            '    {"tool_call_id": "0", "tool_name": ',
            ', "parameters": ',
            "}",
            begin=f"{self.begin}[\n",
            between=",\n",
            end=f"\n]{self.end}",
        )


class ListedParser(ToolParser):
    """Text before the mark stays text, but for the space at its end; behind it are calls, and nothing else."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin, self._end = begin, end
        self._search = MarkerSearch()
        self._space = ""
        self._inside = False
        self._called = False
        self._raw = ""
        """Between the marks, outside of calls."""
        self._call: JsonCall | None = None

    def push(self, text: str) -> list[Event]:
        self._search.push(text)
        return merged(self._read(final=False))

    def flush(self) -> list[Event]:
        events = self._read(final=True)
        if self._call is not None and not self._call.named:
            self._raw += self._call.raw
        if self._inside and (self._call is None or not self._call.named):
            events += self._ended(closed=False)
        elif not self._inside and not self._called:
            events.append(Text(self._space))
        return merged(events)

    def _read(self, *, final: bool) -> list[Event]:
        events: list[Event] = []
        while True:
            while self._call is not None and self._call.in_string and len(self._search):
                events += self._in_list(self._search.take(1))
            if self._call is not None and self._call.in_string:
                return events
            # A quote may begin a text in which the mark is none.
            before, found = self._search.until(
                (self._end, '"') if self._inside else (self._begin,), final=final
            )
            if not self._inside:
                text = self._space + before
                if self._called:
                    text = text.lstrip()
                shown = text.rstrip()
                self._space = text[len(shown) :]
                events.append(Text(shown))
                if found is not None:
                    self._inside, self._called, self._raw, self._space = True, False, "", ""
            else:
                for character in before + ('"' if found == '"' else ""):
                    events += self._in_list(character)
                if found == self._end:
                    events += self._ended(closed=True)
            if found is None:
                return events

    def _in_list(self, character: str) -> list[Event]:
        if self._call is None:
            if character != "{":
                self._raw += character
                return []
            self._call = JsonCall()
        events = self._call.push(character)
        if self._call.done or self._call.broken:
            self._called = self._called or self._call.named
            self._raw += "" if self._call.named else self._call.raw
            self._call = None
        return events

    def _ended(self, *, closed: bool) -> list[Event]:
        """The list is over. What was no call is text as it came."""
        self._inside = False
        raw, self._raw, self._call = self._raw, "", None
        if self._called or not raw.strip("[], \t\r\n"):
            self._called = True
            return []
        return [Text(self._begin + raw + (self._end if closed else ""))]
