"""`/admin/v1`: keys and tenants, for who has an admin key. Only where the deployment file keeps keys in a database, and
on a server that others can reach only if the file says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from tokentrail.server.config import is_loopback
from tokentrail.server.state import ServerState

if TYPE_CHECKING:
    from tokentrail.gateway import Gateway


def is_offered(state: ServerState) -> bool:
    """Whether keys and tenants can be managed over HTTP."""
    gateway = _with_stored_keys(state)
    if gateway is None:
        return False
    wanted = None if gateway.settings.keys is None else gateway.settings.keys.admin_api
    return is_loopback(state.config.host) if wanted is None else wanted


def create_router(state: ServerState) -> APIRouter | None:
    """The routes; None: this server has no keys in a database."""
    gateway = _with_stored_keys(state)
    if gateway is None:
        return None
    if not is_offered(state):
        from tokentrail.server.admin import off

        return off.create_router()
    from tokentrail.server.admin.routes import create_router as create

    return create(gateway)


def _with_stored_keys(state: ServerState) -> Gateway | None:
    return None if state.gateway is None or state.gateway.key_store is None else state.gateway


__all__ = ["create_router", "is_offered"]
