"""Thoughts and tool calls in chat answers: what a model's formats are, and one answer's text taken apart."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokentrail.answer.types import CallPiece, ChatOptions, Chunk
from tokentrail.protocol import InvalidRequest
from tokentrail.text.reasoning import ReasoningFormat, choose_reasoning_format, get_reasoning_format
from tokentrail.text.tool_calls import (
    FORMATS,
    Arguments,
    CallStart,
    Event,
    Text,
    Thought,
    Tool,
    ToolFormat,
    choose_format,
    get_format,
)


@dataclass(frozen=True)
class Formats:
    """How a model marks thoughts and tool calls."""

    tools: ToolFormat | None = None
    """None: its template knows no tools; they are told in a system message, in Hermes' way."""
    reasoning: ReasoningFormat | None = None
    """None: it does not think aloud."""

    @classmethod
    def of(
        cls, template: str | None, tool_call_parser: str | None = None, reasoning_parser: str | None = None
    ) -> Formats:
        """As the names say, or else the chat template. Raises `InvalidRequest` for a name that is not known."""
        return cls(
            choose_format(template) if tool_call_parser is None else get_format(tool_call_parser),
            choose_reasoning_format(template)
            if reasoning_parser is None
            else get_reasoning_format(reasoning_parser),
        )


@dataclass(frozen=True)
class AnswerPlan:
    """How the answers to one prompt are taken apart."""

    prompt: str
    tool_format: ToolFormat | None
    tools: Sequence[Tool]
    reasoning: ReasoningFormat | None
    shown: frozenset[int]
    """Control tokens that are marks, and must be seen."""

    def parser(self) -> AnswerParser:
        return AnswerParser(self)


def tools_of(options: ChatOptions) -> list[Tool]:
    """The tools that the model may call, in this request."""
    tools = []
    for tool in options.tools:
        function = tool["function"]
        parameters = function.get("parameters") or {}
        tools.append(Tool(function["name"], parameters, bool(function.get("strict"))))
    if options.tool_choice == "none":
        return []
    if options.tool_choice in ("auto", "required"):
        return tools
    named = [tool for tool in tools if tool.name == options.tool_choice]
    if not named:
        raise InvalidRequest(
            f"tool_choice names {options.tool_choice[:80]!r}, which is not among the tools.",
            param="tool_choice",
        )
    return named


def format_for(options: ChatOptions, formats: Formats) -> ToolFormat:
    """The format that this answer's calls have."""
    own = formats.tools or FORMATS["hermes"]
    required = options.tool_choice not in ("auto", "none")
    if required and own.grammar(tools_of(options), several=True) is None:
        return FORMATS["json"]  # what has to be calls, and cannot be held to its schema otherwise
    return own


class AnswerParser:
    """Takes one answer apart: its text comes in any pieces, and what comes of it, joined, does not depend on these."""

    def __init__(self, plan: AnswerPlan) -> None:
        # Some formats of calls mark thoughts themselves.
        own = self._own_thoughts = plan.tool_format is not None and plan.tool_format.always
        self._reasoning = None if own or plan.reasoning is None else plan.reasoning.parser(plan.prompt)
        self._calls = None if plan.tool_format is None else plan.tool_format.parser(plan.tools)
        self._short_ids = plan.tool_format is not None and plan.tool_format.short_ids
        self.num_calls = 0
        self._shown = 0
        """Characters of text so far."""

    @property
    def thinking(self) -> bool:
        """The text so far ends within thoughts."""
        if self._reasoning is not None:
            return self._reasoning.thinking
        return self._calls is not None and self._calls.thinking

    @property
    def undecided(self) -> bool:
        """The text so far may be the beginning of thoughts."""
        return self._reasoning is not None and self._reasoning.undecided

    @property
    def may_think(self) -> bool:
        """There may be thoughts in the text to come."""
        if self._reasoning is not None:
            return not self._reasoning.answering
        return self._own_thoughts

    def push(self, text: str, chunk: Chunk) -> None:
        """Take text apart, and add to `chunk` what it brings."""
        if self._reasoning is not None:
            thoughts, text = self._reasoning.push(text)
            chunk.reasoning += thoughts
        self._answer(text, chunk)

    def end(self, chunk: Chunk) -> None:
        """The answer is over: add what was held back."""
        if self._reasoning is not None:
            thoughts, text = self._reasoning.flush()
            chunk.reasoning += thoughts
            self._answer(text, chunk)
        if self._calls is not None:
            for event in self._calls.flush():
                self._take(event, chunk)
        if self.num_calls and chunk.finish_reason == "stop":
            chunk.finish_reason = "tool_calls"

    def _answer(self, text: str, chunk: Chunk) -> None:
        if self._calls is None:
            chunk.text += text
        elif text:
            for event in self._calls.push(text):
                self._take(event, chunk)

    def _take(self, event: Event, chunk: Chunk) -> None:
        if isinstance(event, Text):
            chunk.text += event.text
            self._shown += len(event.text)
        elif isinstance(event, Thought):
            chunk.reasoning += event.text
        elif isinstance(event, CallStart):
            call = CallPiece(self.num_calls, "", id=self._id(), name=event.name, before=self._shown)
            chunk.calls = [*chunk.calls, call]
            self.num_calls += 1
        elif isinstance(event, Arguments):
            last = chunk.calls[-1] if chunk.calls else None
            if last is not None and last.index == self.num_calls - 1:
                last.arguments += event.text
            else:
                chunk.calls = [*chunk.calls, CallPiece(self.num_calls - 1, event.text)]

    def _id(self) -> str:
        # Mistral's templates take no others.
        if self._short_ids:
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


_TOLD = """You can call functions. They stand between <tools> and </tools>, one a line, as JSON:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON between <tool_call> and </tool_call>, like this:
<tool_call>
{{"name": "the function's name", "arguments": {{"the argument's name": "its value"}}}}
</tool_call>"""


def told_of_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The same conversation for a template that knows no tools: these are told in the system message, and calls and
    results are written out, in the way of Hermes and Qwen, which most small models have seen.
    """
    said: list[dict[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            written = [
                f"<tool_call>\n{json.dumps(_call(c), ensure_ascii=False)}\n</tool_call>" for c in calls
            ]
            content = "\n".join([*filter(None, [message.get("content")]), *written])
            said.append({"role": "assistant", "content": content})
        elif message.get("role") == "tool":
            said.append(
                {
                    "role": "user",
                    "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>",
                }
            )
        else:
            said.append(dict(message))
    if not tools:
        return said
    told = _TOLD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if said and said[0].get("role") == "system":
        said[0] = {**said[0], "content": f"{said[0].get('content') or ''}\n\n{told}".lstrip()}
        return said
    return [{"role": "system", "content": told}, *said]


def _call(call: Any) -> dict[str, Any]:
    try:
        function = call["function"]
        return {"name": function["name"], "arguments": _object(function.get("arguments") or {})}
    except (KeyError, TypeError, AttributeError):
        raise InvalidRequest(
            "messages: a tool call must be an object with a function, which has a name and arguments.",
            param="messages",
        ) from None


def _object(arguments: Any) -> Any:
    """Arguments as an object, where they came as JSON."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
