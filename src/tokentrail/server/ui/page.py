"""Serves the page's files: read once, checked again by browsers on each visit, with a strict policy."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tokentrail.server.errors import HTTPError

STATIC = Path(__file__).parent / "static"
PREFIX = "/ui/"
INDEX = "index.html"

# Scripts and styles come from files of ours, requests go to this server, and no text can become markup or a script:
# the browser itself refuses what a mistake in the page would let through (W3C's CSP 3, and Trusted Types).
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class _File(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str
    etag: str


class Page:
    """The page's files. They are read when the first of them is asked for."""

    def __init__(self) -> None:
        self._files: dict[str, _File] | None = None

    async def index(self, request: Request) -> Response:
        return await self.file(request, INDEX)

    async def file(self, request: Request, name: str) -> Response:
        """One of them, by its path below `static/`. Raises a 404 error for any other name."""
        if self._files is None:
            self._files = await asyncio.get_running_loop().run_in_executor(None, _read)
        file = self._files.get(name)
        if file is None:
            raise HTTPError(
                404, "The page has no such file.", type="invalid_request_error", code="unknown_url"
            )
        headers = {
            "etag": file.etag,
            # Kept, and asked about each time: after an update no old script meets a new one.
            "cache-control": "no-cache",
            "content-security-policy": CONTENT_SECURITY_POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
        }
        if name == INDEX:
            headers["vary"] = "accept"  # programs get the list of routes
        if file.etag in _listed(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)


def wants_page(scope: Scope) -> bool:
    """Whether a request is for one of the page's files, which need no key: they ask for it."""
    path: str = scope["path"]
    if path.startswith(PREFIX):
        return True
    return path == "/" and scope["method"] == "GET" and is_browser(scope)


def is_browser(scope: Scope) -> bool:
    """Whether it asks for HTML by name, as browsers do and clients of an API do not."""
    return any(name == b"accept" and b"text/html" in value.lower() for name, value in scope["headers"])


def _listed(header: str) -> set[str]:
    """Entity tags in an `If-None-Match` header, compared weakly (RFC 9110, section 13.1.2)."""
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}


def _read() -> dict[str, _File]:
    files = {}
    for path in sorted(STATIC.rglob("*")):
        if path.is_file() and path.suffix in _TYPES:
            body = path.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            files[path.relative_to(STATIC).as_posix()] = _File(body, _TYPES[path.suffix], etag)
    return files
