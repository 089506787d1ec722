"""Asks our own application, in this process: the same routes, checks and bodies that HTTP requests get."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message

from tokentrail.answer import Identity

PRIORITY = 1 << 20
"""Added to a request's own: whoever asks directly goes first."""


class Reply:
    """An HTTP response."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.lower(): value for name, value in message.get("headers", ())}
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")


async def ask(app: ASGIApp, path: str, body: bytes, *, identity: Identity, request_id: str) -> Reply:
    """POST a JSON body as `identity`. Cancelling it is a client that hangs up."""
    told = False
    reply = Reply()

    async def receive() -> Message:
        nonlocal told
        if told:
            await asyncio.Event().wait()  # it stays
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())],
        "client": None,
        "server": None,
        # The identity that is there already tells the gate that this is no request from outside.
        "state": {"identity": identity, "priority": PRIORITY},
    }
    await app(scope, receive, reply.send)
    return reply
