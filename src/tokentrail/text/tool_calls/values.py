"""Schemas of arguments, taken apart for formats that write arguments in a way of their own: texts without JSON's
quotes, objects without those of their keys.

What is left out of such a value's grammar would not be kept to, so a schema that says anything else is none of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
"""Keywords that allow and forbid nothing."""
_OBJECT = _NOTES | {"type", "properties", "required", "additionalProperties", "$schema"}
DEFINITIONS = ("$defs", "definitions")
_NAME = re.compile(r"[\w.-]{1,64}")
_SCALARS = {"integer", "number", "boolean", "null"}
_DEEPEST = 16


@dataclass(frozen=True)
class Texts:
    """A text: one of `choices`, or else any of so many characters in which `pattern` is found."""

    choices: tuple[str, ...] = ()
    shortest: int = 0
    longest: int | None = None
    pattern: str | None = None

    @property
    def free(self) -> bool:
        return self == Texts()


@dataclass(frozen=True)
class Json:
    """A value that is written as JSON."""

    schema: dict[str, Any]


@dataclass(frozen=True)
class Items:
    """A list."""

    item: Value
    fewest: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Either:
    options: tuple[Value, ...]


@dataclass(frozen=True)
class Member:
    name: str
    required: bool
    value: Value


@dataclass(frozen=True)
class Members:
    """An object, its members in the order of the schema."""

    members: tuple[Member, ...]


Value: TypeAlias = Texts | Json | Items | Either | Members


def json_members(parameters: Mapping[str, Any]) -> Members | None:
    """The arguments of a function, each as JSON. None: the schema says more than that of the object."""
    return _members(parameters, _as_json)


def bare_members(parameters: Mapping[str, Any]) -> Members | None:
    """The arguments of a function, of which texts stand as they are, and all else is JSON. None: likewise, or there is
    one that may be a text or something that could be taken for one.
    """
    return _members(parameters, _bare)


def native_members(parameters: Mapping[str, Any]) -> Members | None:
    """The arguments of a function, of which single values that are no texts are JSON. None: the schema says more than
    such values can be held to.
    """
    return _members(parameters, lambda schema, definitions: _native(schema, definitions, 0))


def _members(parameters: Mapping[str, Any], read: Any) -> Members | None:
    definitions = {name: parameters[name] for name in DEFINITIONS if name in parameters}
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if set(parameters) - _OBJECT - set(definitions) or parameters.get("type", "object") != "object":
        return None
    if (
        not isinstance(properties, dict)
        or not isinstance(required, list)
        or not set(required) <= set(properties)
    ):
        return None
    members = []
    for name, schema in properties.items():
        value = read(schema, definitions) if isinstance(schema, dict) and _NAME.fullmatch(name) else None
        if value is None:
            return None
        members.append(Member(name, name in required, value))
    return Members(tuple(members))


def _as_json(schema: dict[str, Any], definitions: dict[str, Any]) -> Json:
    return Json({**schema, **definitions} if "$ref" in json.dumps(schema) else schema)


def _bare(schema: dict[str, Any], definitions: dict[str, Any]) -> Value | None:
    found = _native(schema, definitions, 0)
    if isinstance(found, Texts):
        return found
    options = found.options if isinstance(found, Either) else ()
    texts = [one for one in options if isinstance(one, Texts)]
    if not texts:
        # A text could not be told from other JSON that a schema may allow.
        whole = found is not None or not _may_be_text(schema, definitions)
        return _as_json(schema, definitions) if whole else None
    if len(texts) > 1 or any(one not in (texts[0], Json({"type": "null"})) for one in options):
        return None
    return None if {"null", "None"}.intersection(texts[0].choices) else found


def _may_be_text(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> bool:
    target = followed(schema, definitions)
    if target is None or depth > _DEEPEST:
        return True
    for key in ("anyOf", "oneOf"):
        if isinstance(options := target.get(key), list):
            return any(_may_be_text(one, definitions, depth + 1) for one in options)
    if isinstance(values := target.get("enum"), list):
        return any(isinstance(value, str) for value in values)
    kind = target.get("type")
    return kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind)


def _native(schema: Any, definitions: dict[str, Any], depth: int) -> Value | None:
    schema = followed(schema, definitions)
    if schema is None or depth > _DEEPEST:
        return None
    said = {name: value for name, value in schema.items() if name not in _NOTES}
    for key in ("anyOf", "oneOf"):
        if key in said:
            options = said.pop(key)
            if said or not isinstance(options, list) or not options:
                return None
            return _either([_native(one, definitions, depth + 1) for one in options])
    kind = said.get("type")
    if isinstance(kind, list):
        return _either([_native({**said, "type": one}, definitions, depth + 1) for one in kind])
    for key in ("enum", "const"):
        if key in said:
            values = said[key] if key == "enum" else [said[key]]
            if set(said) - {key, "type"} or not isinstance(values, list):
                return None
            return _one_of(values, kind)
    if kind == "string":
        return _texts(said)
    if kind in _SCALARS:
        return Json(said)
    if kind == "array":
        return _items(said, definitions, depth)
    if kind == "object" and "properties" in said:
        return _members({**said, **definitions}, lambda one, _: _native(one, definitions, depth + 1))
    return None


def followed(schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema that a reference points to; one that is no reference itself. None: it cannot be found, or is none."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        if set(schema) - _NOTES - {"$ref"}:
            return None
        steps = str(schema["$ref"]).split("/")
        if len(steps) != 3 or steps[0] != "#":
            return None
        of = definitions.get(steps[1])
        schema = of.get(steps[2]) if isinstance(of, dict) else None
    return schema if isinstance(schema, dict) and "$ref" not in schema else None


def _either(options: list[Value | None]) -> Value | None:
    flat: list[Value] = []
    for option in options:
        if option is None:
            return None
        flat += option.options if isinstance(option, Either) else [option]
    return flat[0] if len(flat) == 1 else Either(tuple(flat))


def _one_of(values: list[Any], kind: Any) -> Value | None:
    texts = tuple(value for value in values if isinstance(value, str))
    others = [value for value in values if not isinstance(value, str)]
    if kind not in (None, "string", *_SCALARS) or (
        others if kind == "string" else texts and kind is not None
    ):
        return None
    if not values or not all(text and "\n" not in text and "<" not in text for text in texts):
        return None
    if any(isinstance(value, (dict, list)) for value in others):
        return None
    options: list[Value | None] = [Texts(texts)] if texts else []
    if others:
        options.append(Json({"enum": others} if kind is None else {"type": kind, "enum": others}))
    return _either(options)


def _texts(said: dict[str, Any]) -> Texts | None:
    if set(said) - {"type", "minLength", "maxLength", "pattern"}:
        return None
    shortest, longest = said.get("minLength", 0), said.get("maxLength")
    pattern = said.get("pattern")
    if not _count(shortest) or not (longest is None or _count(longest)):
        return None
    if pattern is not None and (not isinstance(pattern, str) or found_anywhere(pattern) is None):
        return None
    return Texts((), shortest, longest, pattern)


def _items(said: dict[str, Any], definitions: dict[str, Any], depth: int) -> Items | None:
    fewest, most = said.get("minItems", 0), said.get("maxItems")
    if set(said) - {"type", "items", "minItems", "maxItems"} or not _count(fewest):
        return None
    item = _native(said.get("items"), definitions, depth + 1)
    if item is None or not (most is None or (_count(most) and most >= max(1, fewest))):
        return None
    return Items(item, fewest, most)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10_000


def found_anywhere(pattern: str) -> str | None:
    """A regular expression for the whole of texts in which `pattern` is found somewhere, without anchors. None: it has
    anchors elsewhere than at its ends.
    """
    before, after = "(?s:.*)", "(?s:.*)"
    if pattern.startswith("^"):
        pattern, before = pattern[1:], ""
    if pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2:
        pattern, after = pattern[:-1], ""
    depth, escaped, in_class = 0, False, False
    for character in pattern:
        if escaped:
            escaped = False
            if not in_class and character in "bBAzZ":
                return None
        elif character == "\\":
            escaped = True
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character in "^$" or (character == "|" and depth == 0 and not (before and after)):
            return None
        else:
            depth += (character == "(") - (character == ")")
    return f"{before}(?:{pattern}){after}"
