"""How much of its limits a key has used: `/v1/limits` for one's own, below `/admin/v1` for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.gateway.limits import LimitUse
from tokentrail.server.openapi import answers
from tokentrail.server.schemas import json_response

if TYPE_CHECKING:
    from tokentrail.gateway import Gateway


class LimitUses(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[LimitUse]


def create_router(gateway: Gateway) -> APIRouter:
    """Of who asks."""
    router = APIRouter(tags=["usage"])

    @router.get("/v1/limits", openapi_extra=answers(LimitUses))
    async def own_limits(request: Request) -> Response:
        """The limits of this key and of its tenant, and how much of them is used now."""
        identity = request.state.identity
        return await told(gateway, identity.tenant, identity.key)

    return router


async def told(gateway: Gateway, tenant: str, key: str = "") -> Response:
    return json_response(LimitUses(data=await gateway.limit_use(tenant, key)))
