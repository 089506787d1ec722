"""The form of a whole answer: thoughts, then the answer or tool calls, in one grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokentrail.protocol import InvalidRequest, StructuredOutputsParams
from tokentrail.text.grammar.marks import literal
from tokentrail.text.grammar.members import MemberRules
from tokentrail.text.grammar.source import check, source_of, sources_of
from tokentrail.text.reasoning import ReasoningFormat
from tokentrail.text.tool_calls import Tool, ToolFormat, ToolGrammar

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_MOST_CALLS = 32


@dataclass(frozen=True)
class Thoughts:
    """What comes before the answer, of a model that thinks."""

    format: ReasoningFormat
    begun: bool
    """The prompt ends inside of the thoughts: they are no matter of choice."""
    budget: int | None = None
    """Tokens of thoughts at most."""


@dataclass(frozen=True)
class Calls:
    """Tool calls that the answer must be, or may have."""

    format: ToolFormat
    tools: Sequence[Tool]
    required: bool
    """The answer is calls and nothing else."""
    several: bool = True


def build_form(
    wanted: StructuredOutputsParams | None,
    calls: Calls | None,
    thoughts: Thoughts | None,
    marks: Mapping[str, int],
    *,
    answer_begin: str = "",
) -> str | None:
    """The grammar for an answer of this form; None: any text has it. `marks`: see `marks_of`. `answer_begin`: what
    stands before an answer that is no call.

    Structured output and calls concern what comes after the thoughts. Raises `InvalidRequest` naming the field.
    """
    rules = _Rules(marks)
    answer = ""
    if calls is not None and calls.required:
        answer = rules.calls(calls)
    elif wanted is not None:
        rules.sources += sources_of(wanted, marks)
        begin = literal(answer_begin, marks)
        answer = f"({begin} @answer)" if begin else "@answer"
        if calls is not None and calls.format.grammar(calls.tools, several=True) is not None:
            answer = f"({rules.calls(calls)} | {answer})"
    elif calls is not None:
        answer = rules.mixed(calls)
    before = "" if thoughts is None else rules.thoughts(thoughts, needed=bool(answer))
    if not answer and not before:
        return None
    if wanted is not None and answer == "@answer" and not before:
        source = {"grammars": rules.sources}
    else:
        lark = f"start: {before} {answer or rules.anything()}\n" + "".join(rules.lines)
        source = {"grammars": [{"name": "form", "lark_grammar": lark}, *rules.sources]}
    grammar = json.dumps(source)
    field = "tools" if wanted is None else wanted.field
    check(grammar, field if calls is not None or wanted is not None else "thinking_token_budget")
    return grammar


class _Rules:
    def __init__(self, marks: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self.sources: list[dict[str, Any]] = []
        self._marks = marks

    def _text(self) -> str:
        """Any text. Marks are tokens, so it has none."""
        self._add("TEXT: /(?s:.*)/\n")
        return "TEXT"

    def _add(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)

    def anything(self) -> str:
        return f"({self._text()} | <[*]>)*"

    def thoughts(self, thoughts: Thoughts, *, needed: bool) -> str:
        """Thoughts and the marks around them. Empty where nothing need be said about them."""
        start, end = thoughts.format.markers
        budget = thoughts.budget
        if not needed and budget is None:
            return ""
        self.lines.append("SPACE: /\\n{0,2}/\n")
        if any(end.startswith(mark) for mark in self._marks):
            limit = "" if budget is None else f"[max_tokens={budget}]"
            self.lines.append(f"thoughts{limit}: {self._text()}\n")
            inside = f"thoughts {literal(end, self._marks)}"
        elif budget is None:
            pattern = re.escape(end).replace("/", r"\/")
            self.lines.append(f"thoughts[lazy]: /(?s:.*){pattern}/\n")
            inside = "thoughts"
        else:
            raise InvalidRequest(
                f"thinking_token_budget is not supported for this model: {end} is no token of its vocabulary.",
                param="thinking_token_budget",
            )
        if thoughts.begun:
            return f"{inside} SPACE"
        return f"({literal(start, self._marks)} {inside} SPACE)?"

    def calls(self, calls: Calls) -> str:
        """One call, or several if that is allowed, and nothing around them."""
        form = calls.format.grammar(calls.tools, several=calls.several)
        assert form is not None
        names = []
        for number, tool in enumerate(calls.tools):
            names.append(self._call(number, tool, form, form.before, strict=True))
        one = f"({' | '.join(names)})"
        more = f"({literal(form.between, self._marks)} {one}){{0,{_MOST_CALLS - 1}}}" if calls.several else ""
        whole = f"{literal(form.begin, self._marks)} {one} {more} {literal(form.end, self._marks)}"
        known = [pair for pair in form.wrappers if all(mark in self._marks for mark in pair)]
        if not known:
            return whole
        self.lines.append(f"calls: {whole}\n")
        wrapped = [f"{literal(begin, self._marks)} calls {literal(end, self._marks)}" for begin, end in known]
        return f"(calls | {' | '.join(wrapped)})"

    def mixed(self, calls: Calls) -> str:
        """Text with calls in it: from what only a call begins with, it is one. Only for tools that are strict, and for
        formats that have such a beginning; otherwise empty, and anything is allowed.
        """
        form = calls.format.grammar(calls.tools, several=True)
        if form is None or not form.trigger or not any(tool.strict for tool in calls.tools):
            return ""
        before = (form.begin + form.before).removeprefix(form.trigger)
        names = [
            self._call(number, tool, form, before, strict=tool.strict)
            for number, tool in enumerate(calls.tools)
        ]
        if form.trigger in self._marks:
            trigger = f"{self._text()} {literal(form.trigger, self._marks)}"
        else:
            pattern = re.escape(form.trigger).replace("/", r"\/")
            self.lines.append(f"trigger[lazy]: /(?s:.*){pattern}/\n")
            trigger = "trigger"
        return f"({trigger} ({' | '.join(names)}))* {self._text()}"

    def _call(self, number: int, tool: Tool, form: ToolGrammar, before: str, *, strict: bool) -> str:
        name = json.dumps(tool.name, ensure_ascii=False) if form.quoted else tool.name
        head, after = literal(before + name, self._marks), literal(form.after, self._marks)
        if form.numbered:
            self._add("NUMBER: /[0-9]{1,3}/\n")
            head += ' ":" NUMBER'
        head += " " + literal(form.middle, self._marks)
        if form.members is not None:
            arguments = MemberRules(form.members, self._marks, f"call_{number}", self.lines)
            written = arguments.of(tool.parameters, f"tools[{number}].function.parameters")
            self.lines.append(f"call_{number}: {head} {written} {after}\n")
            return f"call_{number}"
        wanted = tool.parameters if strict and tool.parameters else _ANY_OBJECT
        field = f"tools[{number}].function.parameters"
        source = source_of(StructuredOutputsParams(json=wanted, field=field))
        check(json.dumps({"grammars": [{"name": "arguments", **source}]}), field)
        schema = source["json_schema"]
        # Arguments are an object, whatever else the schema says of them.
        schema.setdefault("type", "object")
        self.lines.append(f"call_{number}: {head} %json {json.dumps(schema)} {after}\n")
        return f"call_{number}"
