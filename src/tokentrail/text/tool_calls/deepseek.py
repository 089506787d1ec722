"""DeepSeek and Kimi: marks of their own around each call, and JSON for the arguments alone."""

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
from tokentrail.text.tool_calls.json_value import JsonObject

_ALL, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_MARKERS = (_ALL, _CALL, _SEP, _CALL_END, _ALL_END)


class DeepSeekFormat(ToolFormat):
    """V3 and R1: `function<｜tool▁sep｜>name`, then the arguments as a block of JSON; V3.1: `name<｜tool▁sep｜>{…}`."""

    name = "deepseek_v3"
    markers = _MARKERS

    def __init__(self, *, fenced: bool = True) -> None:
        """`fenced`: as V3 and R1 write calls; both ways are read."""
        self._fenced = fenced

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return DeepSeekParser()

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        if self._fenced:
            before, middle, after, between = (
                f"{_CALL}function{_SEP}",
                "\n```json\n",
                f"\n```{_CALL_END}",
                "\n",
            )
        else:
            before, middle, after, between = _CALL, _SEP, _CALL_END, ""
        return ToolGrammar(before, middle, after, begin=_ALL, between=between, end=_ALL_END, quoted=False)


class DeepSeek31Format(DeepSeekFormat):
    name = "deepseek_v31"

    def __init__(self) -> None:
        super().__init__(fenced=False)


class KimiFormat(ToolFormat):
    """Kimi K2: `functions.name:0` before the arguments."""

    name = "kimi_k2"
    markers = (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    )

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return DeepSeekParser(self.markers)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar:
        begin, call, arguments, call_end, end = self.markers
        return ToolGrammar(
            f"{call}functions.", arguments, call_end, begin=begin, end=end, quoted=False, numbered=True
        )


class DeepSeekParser(ToolParser):
    """`markers`: before all calls, before one, before its arguments, behind them, behind all calls."""

    def __init__(self, markers: tuple[str, ...] = _MARKERS) -> None:
        self._markers = markers
        _, self._call, self._separator, self._call_end, self._end = markers
        self._search = MarkerSearch()
        self._began = False
        self._space = ""
        self._head: list[str] | None = None
        """Of a call: the texts before and behind its separator."""
        self._object: JsonObject | None = None

    def push(self, text: str) -> list[Event]:
        self._search.push(text)
        return merged(self._read(final=False))

    def flush(self) -> list[Event]:
        events = self._read(final=True)
        return merged(events if self._began else [*events, Text(self._space)])

    def _read(self, *, final: bool) -> list[Event]:
        events: list[Event] = []
        while True:
            while self._in_string() and len(self._search):
                events += self._inside(self._search.take(1))
            if self._in_string():
                return events
            # A quote may begin a text in which marks are none.
            in_call = self._head is not None and len(self._head) == 2
            markers = (*self._markers, '"') if in_call else self._markers
            before, found = self._search.until(markers, final=final)
            if self._head is not None:
                for character in before + ('"' if found == '"' else ""):
                    events += self._inside(character)
            elif not self._began:
                text = self._space + before
                shown = text.rstrip()
                self._space = text[len(shown) :]
                events.append(Text(shown))
            if found is None:
                return events
            if found == '"':
                continue
            self._began = True
            if found == self._call:
                self._head, self._object = [""], None
            elif found == self._separator and self._head is not None and len(self._head) == 1:
                self._head.append("")
            elif found in (self._call_end, self._end) and self._head is not None:
                if self._object is None and len(self._head) == 2:
                    events += [CallStart(self._name()), Arguments("{}")]
                self._head = self._object = None

    def _in_string(self) -> bool:
        return self._object is not None and self._object.in_string

    def _inside(self, character: str) -> list[Event]:
        assert self._head is not None
        if self._object is not None:
            return [Arguments(self._object.push(character))]
        if character != "{" or len(self._head) == 1:
            self._head[-1] += character
            return []
        name = self._name()
        self._object = JsonObject()
        return [CallStart(name), Arguments(self._object.push(character))]

    def _name(self) -> str:
        assert self._head is not None
        first, second = self._head[0].strip(), self._head[1].split("```")[0].strip()
        # Kimi's names have a place and a number around them.
        return second or first.removeprefix("functions.").partition(":")[0]
