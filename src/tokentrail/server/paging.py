"""Lists that are told a page at a time, in OpenAI's form."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.requests import Request

from tokentrail.protocol import InvalidRequest


class _HasId(Protocol):
    id: str


Entry = TypeVar("Entry", bound=_HasId)


class ListBody(msgspec.Struct, Generic[Entry], kw_only=True):
    """A page."""

    object: str = "list"
    data: list[Entry]
    has_more: bool
    first_id: str | None
    last_id: str | None


def page(found: list[Entry], limit: int) -> ListBody[Entry]:
    """`found`: one more than `limit`, if there are."""
    data = found[:limit]
    return ListBody(
        data=data,
        has_more=len(found) > limit,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


def limit_of(request: Request, most: int, default: int = 20) -> int:
    """How many entries a request wants. Raises `InvalidRequest`."""
    given = request.query_params.get("limit", str(default))
    if not (given.isascii() and given.isdecimal() and 1 <= int(given[:9]) <= most):
        raise InvalidRequest(f"limit must be an integer from 1 to {most}, not {given[:40]!r}.", param="limit")
    return int(given[:9])
