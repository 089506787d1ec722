"""Wire schemas: JSON → checked requests, values → JSON responses, mistakes in plain words, the OpenAPI document.

Bodies are parsed here, not by the framework: large ones at their own pace, and mistakes told in a dialect's shape.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Container, Iterable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.protocol import DEFAULTED, InvalidRequest
from tokentrail.server.body import read_body
from tokentrail.server.openapi import json_body as json_body  # noqa: PLC0414  (handed on)

log = logging.getLogger(__name__)

_MOST_OBJECTS = 32_768
"""In one body. Each takes 4 µs to check and half a kilobyte, and nothing else is served meanwhile: a thread of its own
would not help, as pydantic holds the interpreter's lock from a body's first byte to its last."""
_TEXT_OR_BRACE = re.compile(rb'"[^"]*"|\{')

Model = TypeVar("Model", bound=BaseModel)
Item = TypeVar("Item")

# Only the first wrong item is told. Without this, a million of them would be collected: seconds in which
# nothing else is served, and hundreds of megabytes.
List = Annotated[list[Item], Field(fail_fast=True)]


class CheckedRequest(BaseModel):
    """A request whose further parameters are looked at: those that cannot be honoured are refused, unknown ones
    logged once.
    """

    # Clients may send null for any parameter: it means "not given" throughout.
    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    UNSUPPORTED: ClassVar[dict[str, str]] = {}
    """Parameter → what to say when it is given. A value that asks for nothing (null, false, [], …) is fine.
    """
    NEUTRAL: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Further values by which some of those ask for nothing."""
    HARMLESS: ClassVar[frozenset[str]] = frozenset()
    """Parameters that are known, and rightly have no effect here."""
    WHERE: ClassVar[str] = ""
    """What stands before names in messages: where in a request this is."""

    def check(self) -> None:
        """Raises `InvalidRequest`."""
        for name, value in (self.model_extra or {}).items():
            reason = self.UNSUPPORTED.get(name)
            if reason is not None:
                if not (_asks_for_nothing(value) or value in self.NEUTRAL.get(name, ())):
                    field = self.WHERE + name
                    raise InvalidRequest(f"{field} is not supported: {reason}", param=field)
            elif name not in self.HARMLESS:
                _ignored(self.WHERE + name)


class LazyRequest(CheckedRequest):
    """One that is built when it is first asked for: a server knows many dialects, and most programs speak one."""

    model_config = ConfigDict(defer_build=True)


def _asks_for_nothing(value: Any) -> bool:
    if value in (None, False, "none", "auto", "", ["text"]) or value == {"type": "text"}:
        return True
    return isinstance(value, (list, dict)) and not value


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_told: set[str] = set()
_MOST_TOLD = 100


def _ignored(name: str) -> None:
    """Log an unknown parameter once; only its name, and not without end."""
    if name not in _told and len(_told) < _MOST_TOLD:
        _told.add(name)
        # What is no name may be anything, and is not for logs.
        shown = repr(name) if _NAME.fullmatch(name) else "whose name is no name"
        log.warning("ignoring the unknown parameter %s", shown)


async def read_json(request: Request, model: type[Model], limit: int, *, any_type: bool = False) -> Model:
    """A request's body, of at most `limit` bytes, as a `model`; `InvalidRequest` names the first wrong field.

    `any_type`: see `read_body`.
    """
    body = await read_body(request, limit, any_type=any_type)
    # Braces within texts count as well, so many of them are looked at more closely.
    if body.count(b"{") > _MOST_OBJECTS:
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(None, _has_too_many_objects, body):
            raise InvalidRequest(
                f"The body has more than {_MOST_OBJECTS} JSON objects (messages, their parts, tools and so on)."
            )
    return parse(model, body)


def _has_too_many_objects(body: bytes) -> bool:
    """Counted in Python's own loop, which lets other threads run, unlike what parses JSON."""
    count = 0
    for found in _TEXT_OR_BRACE.finditer(body.replace(rb"\\", b"").replace(rb"\"", b"")):
        count += found.end() - found.start() == 1
        if count > _MOST_OBJECTS:
            return True
    return False


def parse(model: type[Model], body: bytes) -> Model:
    """JSON → a request. Raises `InvalidRequest` that names the first wrong field.

    A model with a method `check` is checked by it, too.
    """
    try:
        request = model.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error) from None
    if (check := getattr(request, "check", None)) is not None:
        check()
    return request


def given(body: BaseModel, names: Iterable[str]) -> dict[str, Any]:
    """Of these fields, those that the request has."""
    return {name: value for name in names if (value := getattr(body, name, None)) is not None}


def left_open(given: Container[str]) -> list[str]:
    """Sampling parameters that a request with these leaves to the model's makers, `max_tokens` apart."""
    return [name for name in DEFAULTED if name != "max_tokens" and name not in given]


def check_top_logprobs(top: int | None) -> None:
    """Raise `InvalidRequest` for more alternatives than the API has."""
    if top is not None and not 0 <= top <= 20:
        raise InvalidRequest(f"top_logprobs must be from 0 to 20, not {top}.", param="top_logprobs")


def json_response(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def words(*allowed: str) -> Any:
    """For a field of text (`Annotated[str, words(…)]`): what may stand there, for the OpenAPI document. It is checked
    where it is used, in words of that place.
    """
    return Field(json_schema_extra={"enum": list(allowed)})


def by_type(**fields: Mapping[str, str]) -> JsonDict:
    """For a model's configuration (`json_schema_extra`): by the value of its `type` (`_`: none), the fields that it
    needs and their JSON types, for the OpenAPI document.
    """
    forms: list[Any] = []
    for name, needed in fields.items():
        described = {field: {"type": kind} for field, kind in needed.items()}
        if name == "_":
            forms.append({"properties": {"type": {"type": "null"}, **described}, "required": [*needed]})
        else:
            properties = {"type": {"const": name}, **described}
            forms.append({"properties": properties, "required": ["type", *needed]})
    return {"anyOf": forms}


def invalid(error: ValidationError) -> InvalidRequest:
    """One sentence about the first field at fault. A union reports once for each type that did not fit."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        return InvalidRequest(f"The body is not valid JSON: {first['msg'].partition(': ')[2]}.")
    if not first["loc"]:
        return InvalidRequest("The body must be a JSON object.")
    name = str(first["loc"][0])
    if first["type"] == "missing" and len(first["loc"]) == 1:
        return InvalidRequest(f"You must provide {name}.", param=name)
    if first["type"] == "extra_forbidden":
        field = ".".join(str(part) for part in first["loc"])[:80]
        return InvalidRequest(f"There is no field {field!r} here.", param=field)
    # Where a union failed, the branch that was entered deepest is the one that was meant.
    paths = [_path(entry["loc"]) for entry in errors]
    path = max((one for one in paths if one[0] == name), key=len)
    wanted: list[str] = []
    for entry, one in zip(errors, paths, strict=True):
        if one == path and (said := _wanted(entry["msg"])) not in wanted:
            wanted.append(said)
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
    if wanted == [_MISSING]:
        return InvalidRequest(f"You must provide {field}.", param=field)
    return InvalidRequest(f"Invalid value for '{field}': it should be {' or '.join(wanted)}.", param=field)


def _path(location: tuple[int | str, ...]) -> list[int | str]:
    """Without the branches of unions, which pydantic puts into it: `str`, `list[int]` …"""
    return [str(location[0]), *(part for part in location[1:] if not _names_a_type(part))]


def _names_a_type(part: int | str) -> bool:
    return isinstance(part, str) and (part in {"str", "int", "float", "bool"} or part.startswith("list["))


_PLAIN = {
    "a valid string": "a string",
    "a valid list": "a list",
    "a valid array": "a list",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid dictionary": "an object",
}
"""pydantic's words → JSON's."""
_MISSING = "field required"


def _wanted(message: str) -> str:
    for start in ("Input should be ", "Value should be ", "Value should have ", "List should have "):
        if message.startswith(start):
            wanted = message[len(start) :]
            return _PLAIN.get(wanted, wanted)
    return message[0].lower() + message[1:]
