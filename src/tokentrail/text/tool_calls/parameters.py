"""Arguments that come one by one, as texts or values, and are put together to a JSON object."""

from __future__ import annotations

import ast
import json
from typing import Any


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
