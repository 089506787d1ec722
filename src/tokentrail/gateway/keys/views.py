"""Keys and tenants as they are told: by the admin API, and by `tokentrail keys --json`. Times are Unix seconds."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tokentrail.gateway.keys.records import KeyRecord, TenantRecord


class KeyView(msgspec.Struct, kw_only=True):
    """A key, but for its secret."""

    id: str
    object: str = "api_key"
    name: str
    tenant: str
    status: str
    """active, expired or revoked."""
    admin: bool
    models: list[str] | None
    """Names and patterns; null: all."""
    endpoints: list[str] | None
    """null: all."""
    limits: dict[str, Any]
    created_at: int | None
    rotated_at: int | None
    old_key_until: int | None
    """After a rotation: until when the secret before is good."""
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    """About: written once a minute."""
    in_file: bool
    """It stands in the deployment file, and is changed there."""


class NewKeyView(KeyView, kw_only=True):
    """A key with its secret, which is told this once."""

    key: str


class TenantView(msgspec.Struct, kw_only=True):
    id: str
    """Its name."""
    object: str = "tenant"
    name: str
    weight: float
    limits: dict[str, Any]
    disabled: bool
    created_at: int | None
    in_file: bool


def view_key(record: KeyRecord, now: float | None = None) -> KeyView:
    return KeyView(**_fields(record, now))


def view_new_key(record: KeyRecord, key: str) -> NewKeyView:
    return NewKeyView(key=key, **_fields(record, None))


def view_tenant(record: TenantRecord) -> TenantView:
    return TenantView(
        id=record.name,
        name=record.name,
        weight=record.weight,
        limits=record.limits,
        disabled=record.disabled,
        created_at=_seconds(record.created or None),
        in_file=record.in_file,
    )


def _fields(record: KeyRecord, now: float | None) -> dict[str, Any]:
    now = time.time() if now is None else now
    graced = record.old_until is not None and now < record.old_until
    good = record.good_at(now)
    return {
        "id": record.id,
        "name": record.name,
        "tenant": record.tenant,
        "status": "active" if good else "expired" if record.revoked is None else "revoked",
        "admin": record.admin,
        "models": None if record.models is None else list(record.models),
        "endpoints": None if record.endpoints is None else list(record.endpoints),
        "limits": record.limits,
        "created_at": _seconds(record.created or None),
        "rotated_at": _seconds(record.rotated),
        "old_key_until": _seconds(record.old_until) if graced and good else None,
        "expires_at": _seconds(record.expires),
        "revoked_at": _seconds(record.revoked),
        "last_used_at": _seconds(record.last_used),
        "in_file": record.in_file,
    }


def _seconds(moment: float | None) -> int | None:
    return None if moment is None else int(moment)
