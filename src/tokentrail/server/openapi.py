"""The OpenAPI document: what routes take (`json_body`) and answer (`answers`), and how each refuses.

Routes read and write their bodies themselves, so the framework knows neither; each says it in its `openapi_extra`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from tokentrail.server.errors import ErrorBody, Shape, Shaped
from tokentrail.server.sse import DONE_DATA, MEDIA_TYPE

JSON = "application/json"
LINES = "application/x-ndjson"
_EVENTS = MEDIA_TYPE.partition(";")[0]
_ALWAYS = {
    401: "There is no key, or a wrong one.",
    403: "The request names a host or comes from a page that the server does not serve.",
    500: "The server has a bug, or the model computed no numbers.",
    503: "The server is starting or shutting down, or its engine died.",
    504: "The answer took too long.",
}
_WITH_BODY = {
    400: "The request is wrong: the message names the field.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "Too many requests wait already, or a limit is reached.",
}
_NAMED = {404: "There is no such model, or nothing else of this name."}


class Extra(dict[str, Any]):
    """What a route says of itself. Made when the framework reads it, for a document that most servers never make."""

    def __init__(self, *makers: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._makers = makers

    def __or__(self, other: Any) -> Any:
        return Extra(*self._makers, *other._makers)

    def __bool__(self) -> bool:
        return True

    def items(self) -> Any:
        return self._made().items()

    def __getitem__(self, name: str) -> Any:
        return self._made()[name]

    def _made(self) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        for make in self._makers:
            whole |= make()
        return whole


def json_body(model: type[BaseModel]) -> Extra:
    """A request body's schema (of a route's `openapi_extra`)."""

    def make() -> dict[str, Any]:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema = _inlined(schema, schema.pop("$defs", {}))
        return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}

    return Extra(make)


def answers(
    *kinds: Any,
    streams: Any = None,
    done: bool = False,
    lines: Any = None,
    also: Mapping[int, Any] | None = None,
) -> Extra:
    """A response's schema (of a route's `openapi_extra`). `kinds`: the types that its value may have; `streams`: the
    type of the data of server-sent events (or a tuple of types), where it may come as these, and `done`: the last of
    them is `[DONE]`; `lines`: that of lines of JSON, likewise; `also`: by other statuses, the types of what is no error
    in the dialect's shape. Streams may also end with an error in that shape, which is added later.
    """

    def make() -> dict[str, Any]:
        content = {JSON: {"schema": _schema_of(kinds)}} if kinds else {}
        if streams is not None:
            # As OpenAPI 3.2 describes them: one event, whose data is JSON.
            several = streams if isinstance(streams, tuple) else [streams]
            data: dict[str, Any] = {"type": "string"}
            data |= {"contentMediaType": JSON, "contentSchema": _schema_of(several)}
            if done:
                data = {"anyOf": [{"const": DONE_DATA}, data]}
            event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
            content[_EVENTS] = {"schema": event}
        if lines is not None:
            content[LINES] = {"schema": _schema_of([lines])}  # of one of them
        responses = {"200": {"description": "The answer.", "content": content}}
        for status, kind in (also or {}).items():
            other = {JSON: {"schema": _schema_of([kind])}}
            responses[str(status)] = {"description": "Another answer.", "content": other}
        return {"responses": responses}

    return Extra(make)


def text_answer(media_type: str, **more: str) -> Extra:
    """A response that is no JSON. `more`: what its schema says beyond that it is text, or bytes."""
    content = {media_type: {"schema": {"type": "string", **more}}}
    return Extra(lambda: {"responses": {"200": {"description": "The answer.", "content": content}}})


def query(**parameters: dict[str, Any]) -> Extra:
    """Parameters of a query that the route reads itself, by their schemas (of a route's `openapi_extra`)."""
    described = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in parameters.items()
    ]
    return Extra(lambda: {"parameters": described})


def _schema_of(kinds: Sequence[Any]) -> dict[str, Any]:
    schemas, definitions = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    inlined = [_inlined(schema, definitions) for schema in schemas]
    return inlined[0] if len(inlined) == 1 else {"anyOf": inlined}


def describe(app: FastAPI, shape_of: Callable[[str], Shape]) -> None:
    """Have `app` serve this document. `shape_of`: how errors look at a path."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            for path, operations in made["paths"].items():
                for operation in operations.values():
                    _add_errors(operation, path, shape_of(path))
            # The framework's own kind of error, which no route sends.
            made.get("components", {}).pop("schemas", None)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _add_errors(operation: dict[str, Any], path: str, shape: Shape) -> None:
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)
    content = responses.get("200", {}).get("content", {})
    if len(content) > 1 and content.get(JSON) == {"schema": {}}:
        del content[JSON]  # the framework's guess
    statuses = dict(_ALWAYS)
    if "requestBody" in operation:
        statuses |= _WITH_BODY | _NAMED
    if operation.get("parameters"):
        statuses |= {400: _WITH_BODY[400]} | _NAMED
    for status, description in statuses.items():
        told = shape(ErrorBody(message="", type="", request_id=""), status)
        shown = told if isinstance(told, Shaped) else Shaped(told, status)
        schema = _like(msgspec.json.decode(msgspec.json.encode(shown.value)))
        if status == 500:
            _may_fail(content, schema)
        answer = {"description": description, "content": {JSON: {"schema": schema}}}
        responses.setdefault(str(shown.status), answer)
    operation["responses"] = dict(sorted(responses.items()))


def _may_fail(content: dict[str, Any], error: dict[str, Any]) -> None:
    """Errors that come when a stream has begun are its last event or line."""
    if (lines := content.get(LINES)) is not None:
        lines["schema"] = {"anyOf": [lines["schema"], error]}
    if (events := content.get(_EVENTS)) is not None:
        data = events["schema"]["properties"]["data"]
        data = data["anyOf"][-1] if "anyOf" in data else data
        data["contentSchema"] = {"anyOf": [data["contentSchema"], error]}


def _like(value: Any) -> dict[str, Any]:
    """The schema of what looks like `value`: what is empty there may be a text elsewhere."""
    if isinstance(value, dict):
        properties = {name: _like(member) for name, member in value.items()}
        return {"type": "object", "properties": properties, "required": list(value)}
    if value is None:
        return {"type": ["string", "null"]}
    kinds: Mapping[type, str] = {
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
        list: "array",
    }
    return {"type": kinds[type(value)]}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Without references. Schemas of ours are no loops."""

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            # Which type's name stands for which schema: these say so, too, and what it points to is gone.
            if isinstance(node.get("discriminator"), dict) and "propertyName" in node["discriminator"]:
                node = {name: value for name, value in node.items() if name != "discriminator"}
            if "$ref" in node:
                found = inline(definitions[node["$ref"].rsplit("/", 1)[1]])
                return {**found, **{name: value for name, value in node.items() if name != "$ref"}}
            return {name: inline(value) for name, value in node.items()}
        if isinstance(node, list):
            return [inline(value) for value in node]
        # Docstrings' lines are cut for readers of code.
        return re.sub(r"\s*\n\s*", " ", node).strip() if isinstance(node, str) else node

    return inline(schema)
