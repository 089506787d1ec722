"""What is said about files and batches where there is no folder to keep them in."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from tokentrail.server.errors import HTTPError


def create_router() -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["batches"])

    async def off() -> Response:
        raise HTTPError(
            404,
            "Files and batches are off: start the server with --files-dir DIR, a folder to keep them in.",
            type="invalid_request_error",
            code="files_disabled",
        )

    for path in ("/files", "/files/{rest:path}", "/batches", "/batches/{rest:path}"):
        router.add_api_route(path, off, methods=["GET", "POST", "DELETE"], include_in_schema=False)
    return router
