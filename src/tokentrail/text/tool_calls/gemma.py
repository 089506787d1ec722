"""Gemma's functions: `call:name{key:value, …}` between marks, with texts in marks of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tokentrail.text.markers import MarkerSearch
from tokentrail.text.tool_calls.base import (
    Arguments,
    CallStart,
    Event,
    MemberGrammar,
    Text,
    Tool,
    ToolFormat,
    ToolGrammar,
    ToolParser,
    merged,
)
from tokentrail.text.tool_calls.parameters import json_text
from tokentrail.text.tool_calls.values import native_members

_NAME = re.compile(r"[\w.-]+")


class GemmaFormat(ToolFormat):
    """FunctionGemma: `<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`."""

    name = "functiongemma"
    begin, end, quote = "<start_function_call>", "<end_function_call>", "<escape>"
    markers = (begin, end, quote)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return GemmaParser(self.begin, self.end, self.quote)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar | None:
        if any(native_members(tool.parameters) is None or not _NAME.fullmatch(tool.name) for tool in tools):
            return None
        members = MemberGrammar(
            "", ":", "", between=",", quote=self.quote, not_in_texts=(self.quote, self.end)
        )
        return ToolGrammar(f"{self.begin}call:", "{", f"}}{self.end}", quoted=False, members=members)


class Gemma4Format(GemmaFormat):
    """Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>`."""

    name = "gemma4"
    begin, end, quote = "<|tool_call>", "<tool_call|>", '<|"|>'
    markers = (begin, end, quote)


class GemmaParser(ToolParser):
    """A call is given out whole, when its end mark comes."""

    def __init__(self, begin: str, end: str, quote: str) -> None:
        self._begin, self._end, self._quote = begin, end, quote
        self._search = MarkerSearch()
        self._call: str | None = None
        self._called = False
        self._space = ""

    def push(self, text: str) -> list[Event]:
        self._search.push(text)
        return merged(self._read(final=False))

    def flush(self) -> list[Event]:
        events = self._read(final=True)
        if self._call is not None:
            # Some models end their answer instead of writing the end mark.
            events += self._finish(self._call, closed=False)
        elif not self._called:
            events.append(Text(self._space))
        return merged(events)

    def _read(self, *, final: bool) -> list[Event]:
        events: list[Event] = []
        while True:
            marker = self._begin if self._call is None else self._end
            before, found = self._search.until((marker,), final=final)
            if self._call is None:
                text = self._space + before
                if self._called:
                    text = text.lstrip()
                    self._called = not text
                shown = text.rstrip()
                self._space = text[len(shown) :]
                events.append(Text(shown))
                if found is None:
                    return events
                self._call, self._space = "", ""
                continue
            self._call += before
            if found is None:
                return events
            events += self._finish(self._call, closed=True)
            self._call = None

    def _finish(self, text: str, *, closed: bool) -> list[Event]:
        body = text.strip()
        name, brace, rest = body.partition("{")
        name = name.removeprefix("call:").strip()
        if body.startswith("call:") and name and brace:
            reader = _Reader("{" + rest, self._quote)
            try:
                arguments = reader.value()
                self._called = True
                return [CallStart(name), Arguments(json_text(arguments))]
            except (ValueError, RecursionError):
                pass
        return [Text(self._begin + text + (self._end if closed else ""))]


class _Reader:
    """Reads `{key:value, …}`, where keys are bare and texts stand between quotes of their own."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote, self._at = text, quote, 0

    def value(self) -> Any:
        self._space()
        text, at = self._text, self._at
        for quote in (self._quote, '"'):
            if text.startswith(quote, at):
                end = text.index(quote, at + len(quote))
                self._at = end + len(quote)
                return text[at + len(quote) : end]
        if text.startswith("{", at):
            return self._members()
        if text.startswith("[", at):
            self._at += 1
            items = []
            while not self._closes("]"):
                items.append(self.value())
            return items
        word = self._word(",}]")
        try:
            return json.loads(word)
        except ValueError:
            return word

    def _members(self) -> dict[str, Any]:
        self._at += 1
        members: dict[str, Any] = {}
        while not self._closes("}"):
            self._space()
            if self._text.startswith((self._quote, '"'), self._at):
                key = str(self.value())
                self._space()
            else:
                key = self._word(":")
            if not self._text.startswith(":", self._at):
                raise ValueError("no colon")
            self._at += 1
            members[key] = self.value()
        return members

    def _closes(self, bracket: str) -> bool:
        """Skip space and commas; True: the bracket was there, and is behind us."""
        while self._at < len(self._text) and self._text[self._at] in ", \t\r\n":
            self._at += 1
        if self._at >= len(self._text):
            raise ValueError("it does not end")
        if self._text[self._at] != bracket:
            return False
        self._at += 1
        return True

    def _word(self, ends: str) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in ends:
            self._at += 1
        if self._at >= len(self._text):
            raise ValueError("it does not end")
        return self._text[start : self._at].strip()

    def _space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
