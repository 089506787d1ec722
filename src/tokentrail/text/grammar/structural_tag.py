"""Structural tags: text of which some parts have a form of their own. vLLM has them from XGrammar, in two notations.

The older: `structures`, each a `begin`, a JSON `schema` and an `end`, and `triggers`, from where on text must be one of
these. The newer: `format`, a tree of `const_string`, `json_schema`, `regex`, `grammar`, `any_text`, `sequence`, `or`,
`tag`, `triggered_tags` and `tags_with_separator`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tokentrail.protocol import InvalidRequest
from tokentrail.text.grammar.marks import literal

_DEEPEST = 24
Schema = Callable[[Any], str]


def literals(spec: Any, depth: int = 0) -> Iterator[str]:
    """All texts of a specification that may hold marks."""
    if isinstance(spec, Mapping) and depth < 2 * _DEEPEST:
        for name, value in spec.items():
            if name in ("begin", "end", "value", "separator") and isinstance(value, str):
                yield value
            elif name == "triggers" and isinstance(value, list):
                yield from (one for one in value if isinstance(one, str))
            elif name not in ("schema", "json_schema"):
                yield from literals(value, depth + 1)
    elif isinstance(spec, list) and depth < 2 * _DEEPEST:
        for value in spec:
            yield from literals(value, depth + 1)


class StructuralTag:
    """Translates a specification into Lark."""

    def __init__(self, marks: Mapping[str, int], *, schema: Schema, regex: Schema, grammar: Schema) -> None:
        """`marks`: texts that are tokens of their own. `schema`: a JSON Schema as Lark has it inline; `regex`: a
        regular expression in Lark's syntax; `grammar`: a grammar's Lark. All raise `InvalidRequest` without a field.
        """
        self._marks = marks
        self._schema, self._regex, self._grammar = schema, regex, grammar
        self._lines: list[str] = []
        self.parts: list[dict[str, str]] = []
        """Grammars that the main one refers to."""

    def lark(self, spec: Mapping[str, Any]) -> str:
        """Raises `InvalidRequest`, without a field, for what is wrong or not known."""
        if "structures" in spec or "triggers" in spec:
            tags = [
                {
                    "begin": one.get("begin"),
                    "end": one.get("end"),
                    "content": {"type": "json_schema", "json_schema": one.get("schema", True)},
                }
                for one in _objects(spec, "structures")
            ]
            start = self._triggered({"triggers": spec.get("triggers"), "tags": tags})
        elif isinstance(spec.get("format"), Mapping):
            start = self._rule(spec["format"], 0)
        else:
            raise InvalidRequest("a structural tag has either format, or structures and triggers")
        return f"start: {start}\nTEXT: /(?s:.*)/\n" + "".join(self._lines)

    def _rule(self, node: Any, depth: int) -> str:
        if depth > _DEEPEST:
            raise InvalidRequest("the structural tag is nested too deeply")
        kind = node.get("type") if isinstance(node, Mapping) else None
        if kind == "const_string":
            return literal(_text(node, "value"), self._marks)
        if kind == "json_schema":
            return self._schema(node.get("json_schema"))
        if kind == "regex":
            return self._line("", self._regex(_text(node, "pattern")))
        if kind == "grammar":
            name = f"part_{len(self.parts)}"
            self.parts.append({"name": name, "lark_grammar": self._grammar(_text(node, "grammar"))})
            return f"@{name}"
        if kind == "any_text":
            _refuse_excluded(node)
            return "TEXT"
        if kind == "sequence":
            return " ".join(self._rule(one, depth + 1) for one in _objects(node, "elements"))
        if kind == "or":
            return f"({' | '.join(self._rule(one, depth + 1) for one in _objects(node, 'elements'))})"
        if kind == "tag":
            return self._tag(node, "", depth)
        if kind == "triggered_tags":
            return self._triggered(node, depth)
        if kind == "tags_with_separator":
            return self._separated(node, depth)
        raise InvalidRequest(
            f"a structural tag has no format of type {str(kind)[:40]!r}; there are const_string, json_schema, regex, "
            "grammar, any_text, sequence, or, tag, triggered_tags and tags_with_separator"
        )

    def _line(self, attributes: str, pattern: str) -> str:
        name = f"rule_{len(self._lines)}"
        self._lines.append(f"{name}{attributes}: {pattern}\n")
        return name

    def _up_to(self, end: str) -> str:
        """Any text, and then `end`, which it does not hold."""
        if not end:
            return "TEXT"
        if any(end.startswith(mark) for mark in self._marks):
            return f"TEXT {literal(end, self._marks)}"  # a token, which no text holds
        pattern = re.escape(end).replace("/", r"\/")
        return self._line("[lazy]", f"/(?s:.*){pattern}/")

    def _tag(self, node: Mapping[str, Any], begun: str, depth: int) -> str:
        """`begun`: what stands there already."""
        begin, end = _text(node, "begin"), _text(node, "end")
        content = node.get("content")
        before = literal(begin.removeprefix(begun), self._marks)
        if isinstance(content, Mapping) and content.get("type") == "any_text":
            _refuse_excluded(content)
            return f"{before} {self._up_to(end)}"
        return f"{before} {self._rule(content, depth + 1)} {literal(end, self._marks)}"

    def _triggered(self, node: Mapping[str, Any], depth: int = 0) -> str:
        triggers, tags = _texts(node, "triggers"), _objects(node, "tags")
        first = bool(node.get("at_least_one"))
        pieces: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        whole = []
        for tag in tags:
            begin = _text(tag, "begin")
            matching = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(matching) != 1:
                raise InvalidRequest(f"exactly one trigger must begin the tag {begin[:40]!r}")
            pieces[matching[0]].append(self._tag(tag, matching[0], depth + 1))
            if first:
                whole.append(self._tag(tag, "", depth + 1))
        if empty := next((trigger for trigger, tags in pieces.items() if not tags), None):
            raise InvalidRequest(f"the trigger {empty[:40]!r} begins no tag")
        one = " | ".join(f"{self._up_to(trigger)} ({' | '.join(tags)})" for trigger, tags in pieces.items())
        if node.get("stop_after_first"):
            return f"({' | '.join(whole)})" if first else f"({one} | TEXT)"
        return f"{'(' + ' | '.join(whole) + ')' if first else ''} ({one})* TEXT"

    def _separated(self, node: Mapping[str, Any], depth: int) -> str:
        one = f"({' | '.join(self._tag(tag, '', depth + 1) for tag in _objects(node, 'tags'))})"
        more = f"({literal(_text(node, 'separator'), self._marks)} {one})*"
        some = one if node.get("stop_after_first") else f"{one} {more}"
        return some if node.get("at_least_one") else f"({some})?"


def _text(node: Any, name: str) -> str:
    value = node.get(name) if isinstance(node, Mapping) else None
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} of a structural tag must be a string")
    return value


def _texts(node: Mapping[str, Any], name: str) -> list[str]:
    value = node.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise InvalidRequest(f"{name} of a structural tag must be a list of texts that are not empty")
    return list(dict.fromkeys(value))


def _objects(node: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = node.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, Mapping) for one in value):
        raise InvalidRequest(f"{name} of a structural tag must be a list of objects that is not empty")
    return value


def _refuse_excluded(node: Mapping[str, Any]) -> None:
    if node.get("excluded_str") or node.get("excludes"):
        raise InvalidRequest("texts to be excluded from any_text are not supported")
