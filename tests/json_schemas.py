"""JSON Schemas as people write them, made at random: the same number always makes the same schema."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

# fmt: off
_WORDS = [
    "name", "title", "city", "street", "zip", "email", "age", "count", "price", "total", "id",
    "tags", "items", "notes", "status", "kind", "level", "score", "unit", "date", "author",
    "lines", "options", "meta", "left", "right", "value", "label", "größe", "名前", "is_active",
    "first-name", "a.b", "$ref_like",
]
# fmt: on
_PATTERNS = (
    "^[A-Z]{2}-[0-9]{4}$",
    "^[a-z]{1,8}$",
    "^(red|green|blue)$",
    r"^\d{3}-\d{2,4}$",
    "^[A-Za-z_][A-Za-z0-9_]{0,9}$",
    "^#[0-9a-f]{6}$",
)
_FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "hostname")


def make_schema(number: int) -> Schema:
    """An object at the top, with any of: nested objects, arrays with bounds, enums and constants, references (also
    recursive ones), anyOf, patterns, formats, bounded numbers, optional and nullable members, and maps.
    """
    return _Maker(random.Random(f"schema {number}")).top()


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.definitions: Schema = {}

    def top(self) -> Schema:
        rng = self.rng
        for name in rng.sample(["Address", "Money", "Person", "Point"], rng.randint(0, 2)):
            self.definitions[name] = self.object(2, references=False)
        if rng.random() < 0.2:
            self.definitions["Node"] = {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "minimum": 0, "maximum": 99},
                    "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        schema = self.object(0)
        if self.definitions:
            schema["$defs"] = self.definitions
        if rng.random() < 0.2:
            schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Answer"}
        return schema

    def object(self, depth: int, *, references: bool = True) -> Schema:
        rng = self.rng
        names = rng.sample(_WORDS, rng.randint(1, 4 if depth < 2 else 2))
        schema: Schema = {
            "type": "object",
            "properties": {name: self.value(depth + 1, references=references) for name in names},
            "required": [name for name in names if rng.random() < 0.8],
        }
        if rng.random() < 0.8:
            schema["additionalProperties"] = False
        if rng.random() < 0.1:
            schema["description"] = 'an object with "quotes" and ünïcode'
        return schema

    def value(self, depth: int, *, references: bool = True) -> Schema:
        rng = self.rng
        makers = [self.string, self.string, self.integer, self.number, self.enum, self.constant, self.boolean]
        if depth < 3:
            makers += [
                lambda: self.object(depth, references=references),
                lambda: self.array(depth, references=references),
                lambda: self.any_of(depth, references=references),
                lambda: self.map(depth, references=references),
            ]
        if references and self.definitions:
            makers += [lambda: {"$ref": f"#/$defs/{rng.choice(sorted(self.definitions))}"}] * 2
        return rng.choice(makers)()

    def string(self) -> Schema:
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": rng.choice(_PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": rng.choice(_FORMATS)}
        low = rng.randint(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 20)}

    def integer(self) -> Schema:
        rng = self.rng
        low = rng.choice([-1000, -7, 0, 1, 18, 1990])
        schema: Schema = {"type": "integer"}
        if rng.random() < 0.8:
            schema["minimum"] = low
        schema["maximum" if rng.random() < 0.7 else "exclusiveMaximum"] = low + rng.randint(1, 5000)
        if rng.random() < 0.2:
            schema["multipleOf"] = rng.choice([2, 5, 10])
        return schema

    def number(self) -> Schema:
        rng = self.rng
        low = rng.choice([-273.15, 0, 0.5, 100])
        schema: Schema = {"type": "number", "minimum": low}
        if rng.random() < 0.7:
            schema["maximum"] = low + rng.choice([1, 12.5, 1e4])
        return schema

    def enum(self) -> Schema:
        rng = self.rng
        values = [
            "low",
            "high",
            "sehr hoch",
            "高",
            'with "quotes"',
            1,
            2.5,
            None,
            True,
            "a\\b",
            "tab\there",
            [],
        ]
        return {"enum": rng.sample(values, rng.randint(1, 5))}

    def constant(self) -> Schema:
        return {"const": self.rng.choice(["v1", 7, None, False, "naïve", {"a": [1, 2]}])}

    def boolean(self) -> Schema:
        return {"type": self.rng.choice(["boolean", ["boolean", "null"], "null"])}

    def array(self, depth: int, *, references: bool) -> Schema:
        rng = self.rng
        if rng.random() < 0.2:
            items = [self.value(depth + 1, references=references) for _ in range(rng.randint(1, 3))]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        low = rng.randint(0, 2)
        return {
            "type": "array",
            "items": self.value(depth + 1, references=references),
            "minItems": low,
            "maxItems": low + rng.randint(0, 3),
        }

    def any_of(self, depth: int, *, references: bool) -> Schema:
        options = [self.value(depth + 1, references=references) for _ in range(self.rng.randint(2, 3))]
        return {"anyOf": options}

    def map(self, depth: int, *, references: bool) -> Schema:
        return {"type": "object", "additionalProperties": self.value(depth + 1, references=references)}
