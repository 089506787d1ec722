"""The route: one look as JSON, or server-sent events for who asks for these."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tokentrail.protocol import InvalidRequest, Overloaded, TokentrailError
from tokentrail.server.openapi import answers, query
from tokentrail.server.schemas import json_response
from tokentrail.server.sse import MEDIA_TYPE, event
from tokentrail.server.state import ServerState
from tokentrail.server.watching.feed import Feed, Watcher
from tokentrail.server.watching.schema import Live

_SHORTEST = 0.1
"""Seconds between two events: ten a second at most."""
_LONGEST = 60.0
_USUAL = 0.25
_MOST_WATCHERS = 64


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["operations"])
    feed = Feed(state)
    watching: set[Watcher] = set()

    @router.get(
        "/live",
        openapi_extra=answers(Live, streams=Live)
        | query(
            interval={"type": "number", "minimum": _SHORTEST, "maximum": _LONGEST, "default": _USUAL},
        ),
    )
    async def live(request: Request) -> Response:
        """What happens now. One look; a client that accepts `text/event-stream` gets events, `interval` seconds apart,
        until it leaves.
        """
        interval = _interval(request.query_params.get("interval"))
        watcher = feed.watch(request.state.identity)
        first = await watcher.look()
        if "text/event-stream" not in request.headers.get("accept", ""):
            return json_response(first)
        if len(watching) >= _MOST_WATCHERS:
            raise Overloaded(f"{_MOST_WATCHERS} clients watch already. Try again later.", retry_after=10.0)
        watching.add(watcher)
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(events(watcher, first, interval), headers=headers, media_type=MEDIA_TYPE)

    async def events(watcher: Watcher, now: Live, interval: float) -> AsyncIterator[bytes]:
        try:
            while True:
                yield event(now)
                await asyncio.sleep(interval)
                now = await watcher.look()
        except TokentrailError as error:  # the server is shutting down
            yield event({"error": {"message": error.message, "type": error.type, "code": error.code}})
        finally:
            watching.discard(watcher)

    return router


def _interval(given: str | None) -> float:
    if given is None:
        return _USUAL
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST <= seconds <= _LONGEST:
        raise InvalidRequest(
            f"interval must be a number of seconds from {_SHORTEST:g} to {_LONGEST:g}, not {given[:40]!r}.",
            param="interval",
        )
    return seconds
