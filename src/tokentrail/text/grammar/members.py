"""Arguments of calls that are written one by one, as rules of a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tokentrail.protocol import InvalidRequest, StructuredOutputsParams
from tokentrail.text.grammar.marks import literal
from tokentrail.text.grammar.source import check, pattern_of, source_of
from tokentrail.text.tool_calls import MemberGrammar
from tokentrail.text.tool_calls.values import (
    Either,
    Items,
    Json,
    Members,
    Texts,
    Value,
    bare_members,
    found_anywhere,
    json_members,
    native_members,
)


class MemberRules:
    """Adds rules to `lines`, whose names begin with `name`."""

    def __init__(self, form: MemberGrammar, marks: Mapping[str, int], name: str, lines: list[str]) -> None:
        self._form = form
        self._marks = marks
        self._name = name
        self._lines = lines
        self._count = 0
        self._field = ""

    def of(self, parameters: dict[str, Any], field: str) -> str:
        """The arguments, in the schema's order. `field`: what errors name."""
        self._field = field
        form = self._form
        read = json_members if form.quoted else native_members if form.quote else bare_members
        members = read(parameters)
        assert members is not None  # or the format has no grammar for these tools
        return self._members(members, form.before, form.middle, form.after, form.between)

    def _members(self, members: Members, before: str, middle: str, after: str, between: str) -> str:
        """Those that must be there, and any of the others, with `between` between them."""
        separator = literal(between, self._marks)
        first, later = "", ""
        for member in reversed(members.members):
            head = literal(before + member.name + middle, self._marks)
            one = self._rule(f"{head} {self._value(member.value, after)}")
            if member.required:
                first, later = f"{one} {later}", f"{separator} {one} {later}"
            elif not separator:
                first = later = f"({one})? {later}"
            else:
                rest = self._rule(later) if later.strip() else ""
                # None written yet: this one and what may follow it, or what comes without it.
                first = f"({one} {rest} | {first})" if first.strip() else f"({one} {rest})?"
                later = f"({separator} {one})? {rest}"
            if separator:
                first, later = (self._rule(text) if text.strip() else "" for text in (first, later))
        return first

    def _value(self, value: Value, after: str) -> str:
        """A value, and what stands behind it."""
        quote = self._form.quote
        end = literal(after, self._marks)
        if isinstance(value, Texts):
            if not quote:
                return self._text(value, after)
            return f"{literal(quote, self._marks)} {self._text(value, quote)} {end}"
        if isinstance(value, Json) or not quote:
            return self._bare(value, after)
        if isinstance(value, Either):
            return f"({' | '.join(self._value(one, '') for one in value.options)}) {end}"
        if isinstance(value, Items):
            return f'"[" {self._items(value)} "]" {end}'
        return f'"{{" {self._members(value, "", ":", "", ",")} "}}" {end}'

    def _bare(self, value: Value, after: str) -> str:
        """JSON, or a text that may also be null."""
        if isinstance(value, Either):
            return f"({' | '.join(self._value(one, after) for one in value.options)})"
        assert isinstance(value, Json)
        source = source_of(StructuredOutputsParams(json=value.schema, field=self._field))
        check(json.dumps({"grammars": [{"name": "argument", **source}]}), self._field)
        return f"%json {json.dumps(source['json_schema'])} {literal(after, self._marks)}"

    def _items(self, value: Items) -> str:
        item = self._rule(self._value(value.item, ""))
        if value.most == 0:
            return ""
        more = "" if value.most is None else str(value.most - 1)
        some = f'{item} ("," {item}){{{max(0, value.fewest - 1)},{more}}}'
        return some if value.fewest else f"({some})?"

    def _text(self, value: Texts, after: str) -> str:
        """A text, and the mark behind it."""
        end = literal(after, self._marks)
        if value.choices:
            return f"({' | '.join(json.dumps(text, ensure_ascii=False) for text in value.choices)}) {end}"
        longest = "" if value.longest is None else value.longest
        parts = ["/(?s:.*)/" if value.free else f"/(?s:.{{{value.shortest},{longest}}})/"]
        if value.pattern is not None:
            anywhere = found_anywhere(value.pattern)
            assert anywhere is not None
            try:
                parts.append(pattern_of(anywhere))
            except InvalidRequest as error:
                raise InvalidRequest(
                    f"{self._field} cannot be used: the pattern {value.pattern[:80]!r}: {error.message}",
                    param=self._field,
                ) from None
        marks = "|".join(re.escape(mark).replace("/", r"\/") for mark in self._form.not_in_texts)
        parts.append(f"~/(?s:.*)({marks})(?s:.*)/".replace("\\\n", r"\n"))
        self._count += 1
        text = f"{self._name.upper()}_TEXT_{self._count}"
        self._lines.append(f"{text}: {' & '.join(parts)}\n")
        if any(after.startswith(mark) for mark in self._marks):
            return f"{text} {end}"
        # Up to where the mark first comes, and with it.
        whole = f"{self._name.upper()}_ENDED_{self._count}"
        self._lines.append(f"{whole}: {text} {end}\n")
        return self._rule(whole, "[lazy]")

    def _rule(self, body: str, kind: str = "") -> str:
        self._count += 1
        name = f"{self._name}_{self._count}"
        self._lines.append(f"{name}{kind}: {body}\n")
        return name
