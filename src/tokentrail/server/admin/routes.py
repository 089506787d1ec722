"""Keys and tenants over HTTP. The gate has seen to it that who asks has an admin key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.gateway import Gateway
from tokentrail.gateway.config.keys import DEFAULT_TENANT
from tokentrail.gateway.keys.records import KeyRecord, TenantRecord
from tokentrail.gateway.keys.store import Conflict
from tokentrail.gateway.keys.views import (
    KeyView,
    NewKeyView,
    TenantView,
    view_key,
    view_new_key,
    view_tenant,
)
from tokentrail.protocol import InvalidRequest
from tokentrail.server import limits, usage
from tokentrail.server.admin.requests import ChangeKey, ChangeTenant, CreateKey, CreateTenant, RotateKey
from tokentrail.server.body import read_body, refuse_foreign_pages
from tokentrail.server.limits import LimitUses
from tokentrail.server.openapi import answers, json_body, query
from tokentrail.server.paging import ListBody, limit_of, page
from tokentrail.server.schemas import json_response, parse, read_json

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_LARGEST = 64 * 1024
"""Bytes of a request's body."""
_MOST = 100
"""On a page."""
_PAGE: dict[str, Any] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": _MOST, "default": 20},
    "after": {"type": "string"},
}


class Deleted(msgspec.Struct, kw_only=True):
    id: str
    object: str = "tenant"
    deleted: bool = True


def create_router(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["admin"])
    _add_keys(router, gateway)
    _add_tenants(router, gateway)
    if gateway.settings.ledger is not None:
        usage.add_to_admin(router, gateway)
    return router


async def _read(gateway: Gateway, work: Callable[[Connection], T]) -> T:
    return await gateway.database.run(work, writes=False)


async def _change(gateway: Gateway, work: Callable[[Connection], T]) -> T:
    """In force here when it returns, and at other servers within a second."""
    done = await gateway.database.run(work)
    assert gateway.key_refresher is not None
    await gateway.key_refresher.refresh()
    return done


def _add_keys(router: APIRouter, gateway: Gateway) -> None:
    store, ring = gateway.key_store, gateway.keys
    assert store is not None
    assert ring is not None

    def listed(id: str) -> KeyRecord | None:
        return next((record for record in ring.file_keys if record.id == id), None)

    def stored(id: str) -> str:
        if listed(id) is not None:
            raise _in_file("API key", id)
        return id

    async def found(id: str) -> KeyRecord:
        if (record := listed(id)) is not None:
            return record
        return await _read(gateway, lambda connection: store.key(connection, id))

    @router.post("/keys", openapi_extra=json_body(CreateKey) | answers(NewKeyView))
    async def create_key(request: Request) -> Response:
        """Make a key. Its secret is in this answer, and nowhere else."""
        body = await read_json(request, CreateKey, _LARGEST)
        default = body.tenant == DEFAULT_TENANT or any(body.tenant == one.name for one in ring.file_tenants)
        made = await _change(
            gateway, lambda connection: store.create(connection, make_tenant=default, **body.fields())
        )
        _note(request, f"key {made.record.id} of the tenant {made.record.tenant} is made")
        return _secret(view_new_key(*made))

    @router.get(
        "/keys",
        openapi_extra=answers(ListBody[KeyView])
        | query(**_PAGE, tenant={"type": "string"}, status={"type": "string", "enum": ["all"]}),
    )
    async def list_keys(request: Request) -> Response:
        """Keys, the newest first; behind them those of the deployment file. `limit` (up to 100; 20), `after` (a key's
        id), `tenant`, `status` (all: those that were revoked, too).
        """
        tenant = request.query_params.get("tenant")
        status = request.query_params.get("status")
        if status not in (None, "all"):
            raise InvalidRequest(f"status must be all, or left out, not {status[:40]!r}.", param="status")

        def fetch(connection: Connection, after: str | None, limit: int) -> list[KeyRecord]:
            return store.keys(connection, tenant=tenant, after=after, limit=limit, all=status == "all")

        in_file = [record for record in ring.file_keys if tenant in (None, record.tenant)]
        found, limit = await _found(gateway, request, fetch, in_file, lambda record: record.id)
        return json_response(page([view_key(record) for record in found], limit))

    @router.get("/keys/{id}", openapi_extra=answers(KeyView))
    async def get_key(id: str) -> Response:
        """One key."""
        return json_response(view_key(await found(id)))

    @router.get("/keys/{id}/limits", openapi_extra=answers(LimitUses))
    async def key_limits(id: str) -> Response:
        """The limits of a key and of its tenant, and how much of them is used now."""
        record = await found(id)
        return await limits.told(gateway, record.tenant, record.id)

    @router.patch("/keys/{id}", openapi_extra=json_body(ChangeKey) | answers(KeyView))
    async def change_key(request: Request, id: str) -> Response:
        """Change what a key is called and what it may do: what is given, and nothing else."""
        body = await read_json(request, ChangeKey, _LARGEST)
        fields = body.fields()
        record = await _change(gateway, lambda connection: store.change(connection, stored(id), fields))
        _note(request, f"key {record.id} is changed: {', '.join(sorted(fields))}")
        return json_response(view_key(record))

    @router.post("/keys/{id}/rotate", openapi_extra=json_body(RotateKey) | answers(NewKeyView))
    async def rotate_key(request: Request, id: str) -> Response:
        """Give a key a new secret. The old one works on for `grace_s` seconds (86400)."""
        refuse_foreign_pages(request)
        data = await read_body(request, _LARGEST, any_type=True)
        body = parse(RotateKey, data or b"{}")
        made = await _change(
            gateway, lambda connection: store.rotate(connection, stored(id), float(body.grace_s))
        )
        _note(request, f"key {made.record.id} is rotated, with {body.grace_s} s of grace")
        return _secret(view_new_key(*made))

    @router.post("/keys/{id}/revoke", openapi_extra=answers(KeyView))
    async def revoke_key(request: Request, id: str) -> Response:
        """End a key for good."""
        refuse_foreign_pages(request)
        record = await _change(gateway, lambda connection: store.revoke(connection, stored(id)))
        _note(request, f"key {record.id} is revoked")
        return json_response(view_key(record))


def _add_tenants(router: APIRouter, gateway: Gateway) -> None:
    store, ring = gateway.key_store, gateway.keys
    assert store is not None
    assert ring is not None

    def listed(name: str) -> TenantRecord | None:
        return next((record for record in ring.file_tenants if record.name == name), None)

    def stored(name: str) -> str:
        if listed(name) is not None:
            raise _in_file("tenant", name)
        return name

    async def found(name: str) -> TenantRecord:
        if (record := listed(name)) is not None:
            return record
        return await _read(gateway, lambda connection: store.tenant(connection, name))

    @router.post("/tenants", openapi_extra=json_body(CreateTenant) | answers(TenantView))
    async def create_tenant(request: Request) -> Response:
        """Make a tenant."""
        body = await read_json(request, CreateTenant, _LARGEST)
        stored(body.name)
        record = await _change(gateway, lambda connection: store.add_tenant(connection, **body.fields()))
        _note(request, f"tenant {record.name} is made")
        return json_response(view_tenant(record))

    @router.get("/tenants", openapi_extra=answers(ListBody[TenantView]) | query(**_PAGE))
    async def list_tenants(request: Request) -> Response:
        """Tenants, the newest first; behind them those of the deployment file."""

        in_file = ring.file_tenants
        names = [record.name for record in in_file]

        def fetch(connection: Connection, after: str | None, limit: int) -> list[TenantRecord]:
            return store.tenants(connection, after=after, limit=limit, without=names)

        found, limit = await _found(gateway, request, fetch, in_file, lambda record: record.name)
        return json_response(page([view_tenant(record) for record in found], limit))

    @router.get("/tenants/{name}", openapi_extra=answers(TenantView))
    async def get_tenant(name: str) -> Response:
        """One tenant."""
        return json_response(view_tenant(await found(name)))

    @router.get("/tenants/{name}/limits", openapi_extra=answers(LimitUses))
    async def tenant_limits(name: str) -> Response:
        """The limits of a tenant, and how much of them is used now."""
        return await limits.told(gateway, (await found(name)).name)

    @router.patch("/tenants/{name}", openapi_extra=json_body(ChangeTenant) | answers(TenantView))
    async def change_tenant(request: Request, name: str) -> Response:
        """Change a tenant: what is given, and nothing else. `disabled` lets none of its keys in."""
        body = await read_json(request, ChangeTenant, _LARGEST)
        fields = body.fields()
        record = await _change(
            gateway, lambda connection: store.change_tenant(connection, stored(name), fields)
        )
        _note(request, f"tenant {record.name} is changed: {', '.join(sorted(fields))}")
        return json_response(view_tenant(record))

    @router.delete("/tenants/{name}", openapi_extra=answers(Deleted))
    async def delete_tenant(request: Request, name: str) -> Response:
        """Remove a tenant that has never had a key."""
        await _change(gateway, lambda connection: store.remove_tenant(connection, stored(name)))
        _note(request, f"tenant {name} is removed")
        return json_response(Deleted(id=name))


async def _found(
    gateway: Gateway,
    request: Request,
    fetch: Callable[[Connection, str | None, int], list[R]],
    in_file: Sequence[R],
    id_of: Callable[[R], str],
) -> tuple[list[R], int]:
    """What a page may hold and more, and how many it holds. The database's come first, then the file's."""
    limit, after = limit_of(request, _MOST), request.query_params.get("after")
    ids = [id_of(record) for record in in_file]
    found: list[R] = []
    if after in ids:
        in_file = in_file[ids.index(after) + 1 :]
    else:
        found = await _read(gateway, lambda connection: fetch(connection, after, limit))
    return [*found, *in_file], limit


def _secret(view: NewKeyView) -> Response:
    response = json_response(view)
    response.headers["cache-control"] = "no-store"
    return response


def _note(request: Request, what: str) -> None:
    log.info("%s, by %s", what, request.state.identity.key)


def _in_file(what: str, id: str) -> Conflict:
    return Conflict(f"The {what} {id!r} stands in the deployment file: change it there.", code="in_file")
