"""Formats that put each call as JSON between two marks: Hermes and Qwen, and others that differ in the marks."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrail.text.markers import MarkerSearch
from tokentrail.text.tool_calls.base import Event, Text, Tool, ToolFormat, ToolGrammar, ToolParser, merged
from tokentrail.text.tool_calls.json_call import JsonCall


class HermesFormat(ToolFormat):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes 2 Pro, Qwen 2.5 and 3 and many others."""

    name = "hermes"
    begin = "<tool_call>"
    end = "</tool_call>"
    markers = (begin, end)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return EnclosedParser(self.begin, self.end)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        return ToolGrammar(
            before=f'{self.begin}\n{{"name": ',
            middle=', "arguments": ',
            after=f"}}\n{self.end}",
            between="\n",
            trigger=self.begin,
        )


class InternLMFormat(ToolFormat):
    """`<|action_start|><|plugin|>{"name": …, "parameters": {…}}<|action_end|>`, as InternLM 2.5 and 3."""

    name = "internlm"
    markers = ("<|action_start|>", "<|plugin|>", "<|action_end|>")
    begin, end = "<|action_start|><|plugin|>", "<|action_end|>"

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return EnclosedParser(self.begin, self.end)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        return ToolGrammar(f'{self.begin}\n{{"name": ', ', "parameters": ', f"}}{self.end}", between="\n")


class EnclosedParser(ToolParser):
    """Text outside the marks stays text, but for the space around calls."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin, self._end = begin, end
        self._search = MarkerSearch()
        self._call: JsonCall | None = None
        self._after_call = False
        """A call ended, and only space and calls followed."""
        self._space = ""
        """At the end of the text, which belongs to it only if more follows."""

    def push(self, text: str) -> list[Event]:
        self._search.push(text)
        return merged(self._read(final=False))

    def flush(self) -> list[Event]:
        events = self._read(final=True)
        if self._call is not None and not self._call.named:
            events.append(Text(self._begin + self._call.raw))
            self._call = None
        elif not self._after_call:
            events.append(Text(self._space))
        self._space = ""
        return merged(events)

    def _read(self, *, final: bool) -> list[Event]:
        events: list[Event] = []
        search = self._search
        while True:
            call = self._call
            if call is not None:
                while call.in_string and len(search):
                    events += call.push(search.take(1))
                if call.in_string:
                    return events
            # A quote may begin a text in which the mark is none.
            markers = (self._begin,) if call is None else (self._end, '"')
            before, found = search.until(markers, final=final)
            if call is None:
                events += self._outside(before)
                if found is None:
                    return events
                self._space = ""
                self._call = JsonCall()
                continue
            for character in before + ('"' if found == '"' else ""):
                if not call.done and not call.broken:
                    events += call.push(character)
                elif call.broken:
                    call.raw += character
            if found is None:
                return events
            if found == '"':
                continue
            if not call.named:
                # What stands between the marks is no call: it is text as it came.
                events += self._outside(self._begin + call.raw + self._end)
            else:
                self._after_call = True
            self._call = None

    def _outside(self, text: str) -> list[Event]:
        text = self._space + text
        if self._after_call:
            text = text.lstrip()
            if not text:
                return []
            self._after_call = False
        shown = text.rstrip()
        self._space = text[len(shown) :]
        return [Text(shown)] if shown else []
