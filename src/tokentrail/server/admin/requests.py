"""What the admin API takes."""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tokentrail.gateway.config.keys import DEFAULT_TENANT, Endpoint, ModelPattern, TenantName
from tokentrail.gateway.config.limits import LimitSettings
from tokentrail.protocol import InvalidRequest

_Name = Annotated[str, Field(max_length=128)]
_Models = Annotated[list[ModelPattern], Field(min_length=1, max_length=100)]
_Endpoints = Annotated[list[Endpoint], Field(min_length=1, max_length=20)]
_Weight = Annotated[float, Field(ge=0.01, le=1000)]
LONGEST_GRACE = 90 * 86400
_LATEST = 253402300799
"""The end of the year 9999."""


class _Strict(BaseModel):
    # A field that is not read protects nobody.
    model_config = ConfigDict(strict=True, extra="forbid")

    def check(self) -> None:
        expires = getattr(self, "expires_at", None)
        if expires is not None and not time.time() < expires <= _LATEST:
            raise InvalidRequest(
                "expires_at must be a time to come, in seconds since 1970.", param="expires_at"
            )


class CreateKey(_Strict):
    """`POST /admin/v1/keys`."""

    name: _Name = ""
    tenant: TenantName = DEFAULT_TENANT
    admin: bool = False
    models: _Models | None = None
    endpoints: _Endpoints | None = None
    limits: LimitSettings | None = None
    expires_at: int | None = None

    def fields(self) -> dict[str, Any]:
        """As `KeyStore.create` takes them."""
        return {
            "expires" if n == "expires_at" else n: _stored(getattr(self, n)) for n in type(self).model_fields
        }


class ChangeKey(_Strict):
    """`PATCH /admin/v1/keys/{id}`: only what is given changes; null takes a restriction away."""

    name: _Name = ""
    admin: bool = False
    models: _Models | None = None
    endpoints: _Endpoints | None = None
    limits: LimitSettings | None = None
    expires_at: int | None = None

    def fields(self) -> dict[str, Any]:
        """As `KeyStore.change` takes them."""
        return _given(self)


class RotateKey(_Strict):
    """`POST /admin/v1/keys/{id}/rotate`."""

    grace_s: int = Field(86400, ge=0, le=LONGEST_GRACE)
    """Seconds for which the old key still works."""


class CreateTenant(_Strict):
    """`POST /admin/v1/tenants`."""

    name: TenantName
    weight: _Weight = 1.0
    limits: LimitSettings | None = None
    disabled: bool = False

    def fields(self) -> dict[str, Any]:
        return {name: _stored(getattr(self, name)) for name in ("name", "weight", "limits", "disabled")}


class ChangeTenant(_Strict):
    """`PATCH /admin/v1/tenants/{name}`: only what is given changes."""

    weight: _Weight = 1.0
    limits: LimitSettings | None = None
    disabled: bool = False

    def fields(self) -> dict[str, Any]:
        return _given(self)


def _given(body: BaseModel) -> dict[str, Any]:
    values = {name: _stored(getattr(body, name)) for name in body.model_fields_set}
    if "limits" in values and values["limits"] is None:
        values["limits"] = {}
    if "expires_at" in values:
        values["expires"] = values.pop("expires_at")
    return values


def _stored(value: Any) -> Any:
    return value.model_dump(exclude_unset=True) if isinstance(value, LimitSettings) else value
