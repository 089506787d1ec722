"""Calls written as Python: `[get_weather(city="Paris"), now()]`: Llama 4, LFM2, and Gemma 3 in a block of code."""

from __future__ import annotations

import ast
import json
import keyword
from collections.abc import Sequence
from contextlib import suppress

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
from tokentrail.text.tool_calls.values import json_members

_STARTS = ("<|python_start|>", "<|tool_call_start|>", "```tool_code\n", "```tool_code")
_ENDS = ("<|python_end|>", "<|tool_call_end|>", "```")
_LONGEST = 65_536
"""Characters of one call: parsing Python takes memory for each."""


class PythonicFormat(ToolFormat):
    name = "pythonic"
    markers = ("<|python_start|>", "<|python_end|>", "<|tool_call_start|>", "<|tool_call_end|>")

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return PythonicParser({tool.name for tool in tools})

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> ToolGrammar | None:
        for tool in tools:
            arguments = json_members(tool.parameters)
            if arguments is None or not all(_is_name(part) for part in tool.name.split(".")):
                return None
            if not all(_is_name(member.name) for member in arguments.members):
                return None
        members = MemberGrammar("", "=", "", between=", ", quoted=True)
        wrappers = ((self.markers[0], self.markers[1]), (self.markers[2], self.markers[3]))
        return ToolGrammar(
            "",
            "(",
            ")",
            begin="[",
            between=", ",
            end="]",
            quoted=False,
            wrappers=wrappers,
            members=members,
        )


def _is_name(text: str) -> bool:
    """Python takes it for a name, and for this one."""
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


class PythonicParser(ToolParser):
    """An answer that begins with a list of calls (or one call in a block of code) is one; any other is text.

    A call is given out whole, when its bracket closes: only then is it known to be one.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._text = ""
        """Not consumed yet."""
        self._inside: bool | None = None
        """Whether the answer is calls; None: not known yet."""
        self._fenced = False
        self._called = False

    def push(self, text: str) -> list[Event]:
        self._text += text
        return merged(self._read(final=False))

    def flush(self) -> list[Event]:
        events = self._read(final=True)
        rest = self._text.strip()
        for end in _ENDS:
            rest = rest.removesuffix(end).strip()
        if rest.strip("[], \n;") or (self._text and not self._called):
            events.append(Text(self._text))
        self._text = ""
        return merged(events)

    def _read(self, *, final: bool) -> list[Event]:
        if self._inside is None and not self._begin(final):
            return []
        if not self._inside:
            text, self._text = self._text, ""
            return [Text(text)]
        events: list[Event] = []
        while (call := self._next()) is not None:
            events += call
        return events

    def _begin(self, final: bool) -> bool:
        """Find out what the answer is. False: too little is known."""
        text = self._text.lstrip()
        for start in _STARTS:
            if text.startswith(start):
                text = text[len(start) :].lstrip()
                self._fenced = True
                break
            if not final and start.startswith(text):
                return False
        if not text and not final:
            return False
        self._inside = text.startswith("[") or (self._fenced and text[:1].isidentifier())
        if self._inside and text.startswith("["):
            text = text[1:]
        if self._inside:
            head = text.lstrip()
            name = head[: head.find("(")].strip() if "(" in head else head.strip()
            known = not name or all(part.isidentifier() for part in name.split(".") if part)
            if "(" not in head and known and not final:
                self._inside = None
                return False
            self._inside = bool(known and name and "(" in head)
        if self._inside:
            self._text = text
        return True

    def _next(self) -> list[Event] | None:
        """The next call, if it is whole."""
        text = self._text.lstrip(" \t\r\n,;")
        end = _call_end(text)
        if end is None or end > _LONGEST:
            return None
        parsed = _parse(text[:end])
        if parsed is None:
            self._inside = False
            return None
        self._text = text[end:]
        self._called = True
        name, arguments = parsed
        return [CallStart(name), Arguments(arguments)]


def _call_end(text: str) -> int | None:
    """Behind the bracket that closes the first call of `text`; None: it is not there yet."""
    depth, quote, skip = 0, "", False
    for index, character in enumerate(text):
        if skip:
            skip = False
        elif quote:
            if character == "\\":
                skip = True
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth <= 0:
                return index + 1 if character == ")" and depth == 0 else None
    return None


def _parse(text: str) -> tuple[str, str] | None:
    """`f(a=1)` → ("f", '{"a": 1}')"""
    text = text.strip()
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
            return None
        values = {one.arg: _value(one.value, text) for one in call.keywords}
        return ast.unparse(call.func), json_text(values)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr, source: str) -> object:
    """A literal, where JSON's words and texts are as good as Python's."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List):
        return [_value(item, source) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(_value(key, source)): _value(value, source)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    value = ast.literal_eval(node)
    if isinstance(value, str):
        return _text(value, ast.get_source_segment(source, node) or "")
    return list(value) if isinstance(value, (tuple, set)) else value


def _text(value: str, written: str) -> str:
    """A text that is written as JSON says something else in JSON: `\\/`, and halves of characters behind `\\u`."""
    if "\\" not in written:
        return value
    with suppress(ValueError):
        value = str(json.loads(written))
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
