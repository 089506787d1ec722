"""What an admin is told where the admin API is turned off."""

from __future__ import annotations

from fastapi import APIRouter

from tokentrail.server.errors import HTTPError

_METHODS = ["GET", "POST", "PATCH", "DELETE"]


def create_router() -> APIRouter:
    router = APIRouter(prefix="/admin")

    @router.api_route("/{path:path}", methods=_METHODS, include_in_schema=False)
    async def off(path: str) -> None:
        raise HTTPError(
            404,
            "The admin API is off: other machines can reach this server. `admin_api: true` under `keys:` in the "
            "deployment file turns it on; `tokentrail keys` works without it.",
            type="invalid_request_error",
            code="admin_api_off",
        )

    return router
