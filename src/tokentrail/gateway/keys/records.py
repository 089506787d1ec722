"""What is known of a key and of a tenant. Times are Unix seconds."""

from __future__ import annotations

from typing import Any

import msgspec

from tokentrail.answer import Identity


class TenantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who keys belong to. What is isolated from others is a tenant's: journeys, files, batches, responses, cached
    prefixes and answers. Its keys share them.
    """

    name: str
    weight: float = 1.0
    """Share of the engine beside other tenants'."""
    limits: dict[str, Any] = {}
    """For all of its keys together, as `gateway.limits` understands them."""
    disabled: bool = False
    """None of its keys is let in."""
    created: float = 0.0
    in_file: bool = False
    """Named in the deployment file, which alone can change it."""


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key, but for its secret, of which only digests are kept."""

    id: str
    """By which people and programs speak of it; the same for its whole life, rotations included."""
    tenant: str
    name: str = ""
    digest: bytes
    """See `keys.secrets`."""
    old_digest: bytes | None = None
    """Of the secret before the last rotation …"""
    old_until: float | None = None
    """… which is good until then."""
    created: float = 0.0
    rotated: float | None = None
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None
    """Coarse: written now and then."""
    admin: bool = False
    models: tuple[str, ...] | None = None
    """Names and patterns of what it may ask; None: every model."""
    endpoints: tuple[str, ...] | None = None
    """Of `scopes.ENDPOINTS`; None: all."""
    limits: dict[str, Any] = {}
    """As `gateway.limits` understands them."""
    in_file: bool = False
    """Named in the deployment file, which alone can change it."""

    def good_at(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)

    def identity(self, tenant: TenantRecord) -> Identity:
        return Identity(
            tenant=self.tenant,
            key=self.id,
            admin=self.admin,
            models=self.models,
            endpoints=None if self.endpoints is None else frozenset(self.endpoints),
            weight=tenant.weight,
        )
