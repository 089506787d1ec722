"""Arguments that were read one by one, as texts or values, and are put together to a JSON object."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tokentrail.text.tool_calls.values import followed


def typed(text: str, schema: Any, definitions: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """A parameter that a model wrote as text, as the value that its schema wants. What has no other type is text.
    `definitions`: what the schema's references point to.
    """
    kinds = _kinds(schema, definitions)
    if kinds == {"string"}:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = ast.literal_eval(text.strip())
            json.dumps(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text
    # Where it may be a text, too, it is one unless it is of another kind that is allowed: quotes are part of a text.
    kind = _kind(value)
    if "string" in kinds and (
        kind == "string" or kinds.isdisjoint({kind, "number" if kind == "integer" else kind})
    ):
        return text
    return value


def _kinds(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
    schema = followed(schema, definitions)
    if schema is None:
        return set()
    kind = schema.get("type")
    kinds = {kind} if isinstance(kind, str) else {one for one in kind or () if isinstance(one, str)}
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key) or ():
            kinds |= _kinds(option, definitions)
    if not kinds and "enum" in schema and isinstance(schema["enum"], list):
        kinds = {_kind(value) for value in schema["enum"]}
    return kinds


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) else "number"
    if isinstance(value, str):
        return "string"
    return "null" if value is None else "array" if isinstance(value, list) else "object"


def json_text(value: Any) -> str:
    """A value as JSON, which knows no infinities: what is too large for a number is the largest."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(sys.float_info.max, value)
    if isinstance(value, dict):
        return {key: _finite(member) for key, member in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


class ObjectWriter:
    """A JSON object, written member by member."""

    def __init__(self) -> None:
        self._begun = False

    def member(self, key: str, value: Any) -> str:
        before = ", " if self._begun else "{"
        self._begun = True
        return f"{before}{json_text(key)}: {json_text(value)}"

    def end(self) -> str:
        return "}" if self._begun else "{}"
