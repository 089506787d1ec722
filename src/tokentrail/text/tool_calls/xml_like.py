"""Formats that write each argument between marks of its own: GLM-4.5 and later, Qwen3-Coder."""

from __future__ import annotations

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
from tokentrail.text.tool_calls.parameters import ObjectWriter, typed
from tokentrail.text.tool_calls.values import DEFINITIONS, bare_members

_BEGIN, _END = "<tool_call>", "</tool_call>"


class GlmFormat(ToolFormat):
    """`<tool_call>name`, then `<arg_key>…</arg_key><arg_value>…</arg_value>` for each argument, `</tool_call>`."""

    name = "glm45"
    markers = (_BEGIN, _END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return _GlmParser(tools)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar | None:
        inside = (*_GlmParser.INSIDE, _END)
        members = MemberGrammar("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", not_in_texts=inside)
        return _by_members(
            tools, ToolGrammar(_BEGIN, "\n", _END, between="\n", quoted=False, members=members)
        )


class QwenCoderFormat(ToolFormat):
    """`<tool_call><function=name><parameter=key>…</parameter></function></tool_call>`."""

    name = "qwen3_coder"
    markers = (_BEGIN, _END)

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return _QwenCoderParser(tools)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar | None:
        return _function_grammar(tools, _BEGIN, _END)


class SeedFormat(ToolFormat):
    """Seed-OSS: the same between marks of its own."""

    name = "seed_oss"
    markers = ("<seed:tool_call>", "</seed:tool_call>")

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return _SeedParser(tools)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar | None:
        return _function_grammar(tools, *self.markers)


class MiniMaxFormat(ToolFormat):
    """MiniMax M2: `<minimax:tool_call><invoke name="…"><parameter name="…">…</parameter></invoke></minimax:tool_call>`,
    with one `invoke` a call.
    """

    name = "minimax_m2"
    markers = ("<minimax:tool_call>", "</minimax:tool_call>")

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return _MiniMaxParser(tools)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar | None:
        begin, end = self.markers
        inside = (*_MiniMaxParser.INSIDE, end)
        members = MemberGrammar('<parameter name="', '">', "</parameter>\n", not_in_texts=inside)
        return _by_members(
            tools,
            ToolGrammar(
                '<invoke name="',
                '">\n',
                "</invoke>\n",
                begin=f"{begin}\n",
                end=end,
                quoted=False,
                members=members,
            ),
        )


def _function_grammar(tools: Sequence[Tool], begin: str, end: str) -> ToolGrammar | None:
    return _by_members(
        tools,
        ToolGrammar(
            f"{begin}\n<function=",
            ">\n",
            f"</function>\n{end}",
            between="\n",
            quoted=False,
            members=MemberGrammar(
                "<parameter=", ">\n", "\n</parameter>\n", not_in_texts=(*_QwenCoderParser.INSIDE, end)
            ),
        ),
    )


def _by_members(tools: Sequence[Tool], grammar: ToolGrammar) -> ToolGrammar | None:
    """None where some arguments cannot be written one by one and still be held to their schemas."""
    return grammar if all(bare_members(tool.parameters) is not None for tool in tools) else None


class _XmlLikeParser(ToolParser):
    """Finds calls and the marks inside them; a subclass knows what these mean."""

    INSIDE: tuple[str, ...]
    BEGIN, END = _BEGIN, _END
    NEXT = ""
    """What ends one of several calls between the marks."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._schemas: dict[str, Any] = {tool.name: tool.parameters for tool in tools}
        self._search = MarkerSearch()
        self._in_call = False
        self._after_call = False
        self._space = ""
        self._raw = ""
        """Of the call at hand, until its name is known."""
        self._mark = ""
        """The mark before the text at hand."""
        self._content = ""
        self._properties: dict[str, Any] = {}
        self._definitions: dict[str, Any] = {}
        self._named = False
        self._several = False
        """Calls between these marks have ended before."""
        self._writer = ObjectWriter()

    def push(self, text: str) -> list[Event]:
        self._search.push(text)
        return merged(self._read(final=False))

    def flush(self) -> list[Event]:
        events = self._read(final=True)
        if self._in_call and not self._named and not self._several:
            events.append(Text(self.BEGIN + self._raw))
        elif not self._after_call:
            events.append(Text(self._space))
        return merged(events)

    def _read(self, *, final: bool) -> list[Event]:
        events: list[Event] = []
        while True:
            markers = (*self.INSIDE, self.END) if self._in_call else (self.BEGIN,)
            before, found = self._search.until(markers, final=final)
            if self._in_call:
                self._content += before
                self._raw += before
            else:
                events += self._outside(before)
            if found is None:
                return events
            if found == self.BEGIN:
                self._space, self._raw, self._content, self._mark = "", "", "", self.BEGIN
                self._in_call, self._named, self._writer = True, False, ObjectWriter()
                continue
            events += self._ended(self._mark, self._content)
            self._raw += found
            self._mark, self._content = found, ""
            if found == self.NEXT and self._named:
                events.append(Arguments(self._writer.end()))
                self._after_call, self._several = True, True
                self._named, self._writer = False, ObjectWriter()
            elif found == self.END and self._several and not self._named:
                self._in_call = self._several = False
            elif found == self.END:
                if self._named:
                    events.append(Arguments(self._writer.end()))
                    self._after_call = True
                else:
                    events += self._outside(self.BEGIN + self._raw)
                self._in_call = False

    def _ended(self, mark: str, content: str) -> list[Event]:
        """The text `content`, which stands behind `mark`, is whole."""
        raise NotImplementedError

    def _name(self, name: str) -> list[Event]:
        self._named = True
        schema = self._schemas.get(name)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        self._properties = properties if isinstance(properties, dict) else {}
        self._definitions = {key: schema[key] for key in DEFINITIONS if key in schema} if schema else {}
        return [CallStart(name)]

    def _argument(self, key: str, text: str) -> list[Event]:
        return [
            Arguments(self._writer.member(key, typed(text, self._properties.get(key), self._definitions)))
        ]

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


class _GlmParser(_XmlLikeParser):
    INSIDE = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools)
        self._key = ""

    def _ended(self, mark: str, content: str) -> list[Event]:
        if mark == self.BEGIN and content.strip():
            return self._name(content.strip())
        if mark == "<arg_key>":
            self._key = content.strip()
        elif mark == "<arg_value>" and self._named:
            return self._argument(self._key, content)
        return []


class _QwenCoderParser(_XmlLikeParser):
    INSIDE = ("<function=", "<parameter=", "</parameter>", "</function>")

    def _ended(self, mark: str, content: str) -> list[Event]:
        head, closed, rest = content.partition(">")
        if not closed:
            return []
        if mark == "<function=" and head.strip():
            return self._name(head.strip())
        if mark == "<parameter=" and self._named:
            # A line break stands at either end of the value.
            return self._argument(head.strip(), rest.removeprefix("\n").removesuffix("\n"))
        return []


class _SeedParser(_QwenCoderParser):
    BEGIN, END = SeedFormat.markers


class _MiniMaxParser(_XmlLikeParser):
    BEGIN, END = MiniMaxFormat.markers
    NEXT = "</invoke>"
    INSIDE = ("<invoke name=", "<parameter name=", "</parameter>", "</invoke>")

    def _ended(self, mark: str, content: str) -> list[Event]:
        head, closed, rest = content.partition(">")
        name = head.strip().strip("\"'")
        if not closed or not name:
            return []
        if mark == "<invoke name=" and not self._named:
            return self._name(name)
        if mark == "<parameter name=" and self._named:
            return self._argument(name, rest)
        return []
