"""`/admin/v1`: keys and tenants, for who has an admin key. Only where the deployment file keeps keys in a database, and
on a server that others can reach only if the file says so.
"""

from __future__ import annotations

from fastapi import APIRouter

from tokentrail.server.config import is_loopback
from tokentrail.server.state import ServerState


def is_offered(state: ServerState) -> bool:
    gateway = state.gateway
    if gateway is None or gateway.settings.keys is None or gateway.key_store is None:
        return False
    wanted = gateway.settings.keys.admin_api
    return is_loopback(state.config.host) if wanted is None else wanted


def create_router(state: ServerState) -> APIRouter | None:
    """The routes; None: this server has no keys in a database."""
    gateway = state.gateway
    if gateway is None or gateway.settings.keys is None or gateway.key_store is None:
        return None
    if not is_offered(state):
        from tokentrail.server.admin import off

        return off.create_router()
    from tokentrail.server.admin.routes import create_router as create

    return create(gateway)


__all__ = ["create_router", "is_offered"]
