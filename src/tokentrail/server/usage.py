"""What was used, as the ledger has it: `/v1/usage` for a tenant's own, `/admin/v1/usage` for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.gateway.ledger.reports import DIMENSIONS, UsageLine, UsageQuestion, day_of, usage
from tokentrail.protocol import InvalidRequest
from tokentrail.server.openapi import answers, query
from tokentrail.server.schemas import json_response

if TYPE_CHECKING:
    from tokentrail.gateway import Gateway

_DAY: dict[str, Any] = {"type": "string", "format": "date"}
_TEXT: dict[str, Any] = {"type": "string"}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "by": {"type": "array", "items": {"type": "string", "enum": list(DIMENSIONS)}, "default": ["day"]},
    "from": _DAY,
    "to": _DAY,
    "key": _TEXT,
    "model": _TEXT,
}


class UsageReport(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[UsageLine]


def create_router(gateway: Gateway) -> APIRouter:
    """Of a tenant's own usage."""
    router = APIRouter(tags=["usage"])

    @router.get("/v1/usage", openapi_extra=answers(UsageReport) | query(**_PARAMETERS))
    async def own_usage(request: Request) -> Response:
        """Requests, tokens and cost of this key's tenant, summed `by` day (UTC), key, model, route, target or state
        (several may be given), `from` one day `to` another, both included.
        """
        return await _report(gateway, request, request.state.identity.tenant, own_use=False)

    return router


def add_to_admin(router: APIRouter, gateway: Gateway) -> None:
    @router.get("/usage", openapi_extra=answers(UsageReport) | query(**_PARAMETERS, tenant=_TEXT))
    async def all_usage(request: Request) -> Response:
        """As `/v1/usage`, of all tenants, or of one `tenant`."""
        return await _report(gateway, request, request.query_params.get("tenant"))


async def _report(
    gateway: Gateway, request: Request, tenant: str | None, *, own_use: bool = True
) -> Response:
    given = request.query_params
    for name in given:
        if name not in _PARAMETERS and name != "tenant":
            raise InvalidRequest(f"There is no parameter {name[:40]!r} here.", param=name[:40])
    since, until = given.get("from"), given.get("to")
    question = UsageQuestion(
        by=[name for text in given.getlist("by") for name in text.split(",")] or ["day"],
        since=None if since is None else day_of(since, "from"),
        until=None if until is None else day_of(until, "to"),
        tenant=tenant,
        key=given.get("key"),
        model=given.get("model"),
        own_use=own_use,
    )
    question.check()
    lines = await gateway.database.run(lambda connection: usage(connection, question), writes=False)
    return json_response(UsageReport(data=lines))
