"""Arguments that come one by one, as texts or values, and are put together to a JSON object."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
"""Keywords that allow and forbid nothing."""
_OBJECT = _NOTES | {"type", "properties", "required", "additionalProperties", "$schema"}
_NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True)
class Member:
    """An argument that can be written alone."""

    name: str
    required: bool
    texts: tuple[str, ...] = ()
    """The texts that it may be; none: it is any text, or no text at all."""
    schema: dict[str, Any] | None = None
    """Of a value that is JSON; None: it is a text."""


def members_of(parameters: dict[str, Any]) -> list[Member] | None:
    """The arguments of a function, each with its own schema. None: the schema says more than that, or of texts what
    only JSON's grammar can be held to.
    """
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if set(parameters) - _OBJECT or parameters.get("type", "object") != "object":
        return None
    if (
        not isinstance(properties, dict)
        or not isinstance(required, list)
        or not set(required) <= set(properties)
    ):
        return None
    members = []
    for name, schema in properties.items():
        if not _NAME.fullmatch(name) or not isinstance(schema, dict):
            return None
        kinds, needed = _kinds(schema), name in required
        if kinds == {"string"}:
            texts = schema.get("enum", [])
            if set(schema) - _NOTES - {"type", "enum"} or not all(_plain(text) for text in texts):
                return None
            members.append(Member(name, needed, tuple(texts)))
        elif not kinds or "string" in kinds or "$ref" in json.dumps(schema):
            return None
        else:
            members.append(Member(name, needed, schema=schema))
    return members


def _plain(text: Any) -> bool:
    return isinstance(text, str) and bool(text) and "\n" not in text and "<" not in text


def typed(text: str, schema: Any) -> Any:
    """A parameter that a model wrote as text, as the value that its schema wants. What has no other type is text."""
    kinds = _kinds(schema)
    if "string" in kinds and len(kinds) == 1:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = ast.literal_eval(text.strip())
            json.dumps(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text
    if "string" in kinds and not isinstance(value, (dict, list, type(None))) and _kind(value) not in kinds:
        return text
    return value


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type")
    kinds = {kind} if isinstance(kind, str) else {one for one in kind or () if isinstance(one, str)}
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key) or ():
            kinds |= _kinds(option)
    if not kinds and "enum" in schema and isinstance(schema["enum"], list):
        kinds = {_kind(value) for value in schema["enum"]}
    return kinds


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "null" if value is None else "array" if isinstance(value, list) else "object"


class ObjectWriter:
    """A JSON object, written member by member."""

    def __init__(self) -> None:
        self._begun = False

    def member(self, key: str, value: Any) -> str:
        before = ", " if self._begun else "{"
        self._begun = True
        return f"{before}{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"

    def end(self) -> str:
        return "}" if self._begun else "{}"
