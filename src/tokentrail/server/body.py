"""Reading a request's body: no more than is allowed, in no more time than is sensible."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from tokentrail.server.errors import HTTPError, too_large

BODY_TIMEOUT = 60.0
"""Seconds for the whole body to arrive."""


async def read_body(request: Request, limit: int, *, any_type: bool = False) -> bytes:
    """The body of at most `limit` bytes. It is counted while it arrives: `Content-Length` may lie or be
    absent.

    `any_type`: programs may call JSON what they like, as `curl -d` does.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    # Forms and plain text are what a foreign web page may post without asking: refusing them keeps pages out.
    json = kind == "application/json" or kind.endswith("+json")
    if not json and not (any_type and _of_a_program(request)):
        raise HTTPError(
            415,
            f"The body must be JSON (Content-Type: application/json), not {kind[:80]!r}.",
            type="invalid_request_error",
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large(limit)
    try:
        return await asyncio.wait_for(_read(request, limit), BODY_TIMEOUT)
    except asyncio.TimeoutError:
        raise HTTPError(408, "The body took too long to arrive.", type="invalid_request_error") from None


def refuse_foreign_pages(request: Request) -> None:
    """Of what a web page may send without asking (forms, empty bodies), take only what no foreign page can have sent:
    what carries a key in a header, or comes from a program, or from our own pages.
    """
    headers = request.headers
    if {"authorization", "x-api-key"} & set(headers) or _of_a_program(request):
        return
    if headers.get("sec-fetch-site") in ("same-origin", "none"):
        return
    raise HTTPError(
        403,
        "A web page of another origin may not send this without a key in the Authorization header.",
        type="invalid_request_error",
        code="foreign_origin",
    )


def _of_a_program(request: Request) -> bool:
    """Not of a web page: with those, browsers say where the page is from."""
    return not ({"origin", "sec-fetch-site"} & set(request.headers))


async def _read(request: Request, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)
