"""Reading the OpenAPI document in tests."""

from __future__ import annotations

from typing import Any


def closed(schema: Any) -> Any:
    """The same schema, with no properties but those that it names."""
    if isinstance(schema, dict):
        made = {name: closed(value) for name, value in schema.items()}
        if "properties" in made and "additionalProperties" not in made:
            made["additionalProperties"] = False
        return made
    return [closed(one) for one in schema] if isinstance(schema, list) else schema
