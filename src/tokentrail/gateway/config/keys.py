"""Who may ask: keys and tenants."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timezone
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, AwareDatetime, Field, SecretStr, model_validator

from tokentrail.gateway.config.base import Settings
from tokentrail.gateway.config.limits import LimitSettings

Endpoint = Literal[
    "chat", "completions", "responses", "embeddings", "moderations", "files", "tokens", "journeys"
]
ENDPOINTS: tuple[str, ...] = get_args(Endpoint)
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
DEFAULT_TENANT = "default"
SHORTEST, _LONGEST = 16, 512
"""Characters of a key or a pepper that somebody chose."""


def _plain_name(name: str) -> str:
    if not _TENANT.fullmatch(name):
        raise ValueError("must be 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def _key_name(name: str) -> str:
    if name.startswith("key_"):
        raise ValueError("must not begin with key_, as the ids of keys in the database do")
    return _plain_name(name)


def _long_enough(secret: SecretStr) -> SecretStr:
    if not SHORTEST <= len(secret) <= _LONGEST:
        raise ValueError(f"must have {SHORTEST} to {_LONGEST} characters, and has {len(secret)}")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_long_enough)]
TenantName = Annotated[str, AfterValidator(_plain_name)]
ModelPattern = Annotated[str, Field(min_length=1, max_length=256)]


class KeyScope(Settings):
    """What a key may do, wherever it is kept."""

    tenant: TenantName = Field(
        DEFAULT_TENANT, description="Whose key it is. Keys of a tenant share what is theirs."
    )
    admin: bool = Field(False, description="It may use the admin API.")
    models: list[ModelPattern] | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Names, or patterns such as llama-*, of the models that it may ask. Without it: all.",
    )
    endpoints: list[Endpoint] | None = Field(
        None, min_length=1, description="Kinds of endpoints that it may use. Without it: all."
    )
    limits: LimitSettings | None = Field(None, description="In the place of limits.each_key's.")


class ListedKey(KeyScope):
    """A key that the file names: give `key` or `hash`."""

    name: Annotated[str, AfterValidator(_key_name)] = Field(
        description="Its id: told in logs, metrics and usage."
    )
    key: Secret | None = Field(None, description="What clients send; best from ${A_VARIABLE}.")
    hash: str | None = Field(None, description="sha256: and the SHA-256 of the key, in hexadecimal digits.")
    expires: AwareDatetime | date | None = Field(
        None, description="A moment (2027-01-31T12:00:00Z), or the day at whose beginning, in UTC, it ends."
    )

    @model_validator(mode="after")
    def _one_secret(self) -> ListedKey:
        if (self.key is None) == (self.hash is None):
            raise ValueError("give one of key and hash")
        if self.hash is not None and not _HASH.fullmatch(self.hash):
            raise ValueError("hash must be sha256: and 64 hexadecimal digits: printf %s KEY | sha256sum")
        return self

    @property
    def expires_at(self) -> float | None:
        """Unix seconds."""
        if self.expires is None or isinstance(self.expires, datetime):
            return None if self.expires is None else self.expires.timestamp()
        return datetime.combine(self.expires, time(), timezone.utc).timestamp()


class KeysSettings(Settings):
    """Only who has a key is let in: one of this file, one of the database (`tokentrail keys`), or an --api-key."""

    listed: list[ListedKey] = Field([], max_length=1000, description="Keys that this file names.")
    stored: bool = Field(
        True,
        description="Let in the keys in `database`, too, which `tokentrail keys` and the admin API manage.",
    )
    pepper: Secret | None = Field(
        None,
        description="A secret that digests in the database are made with, so that who copies the database alone can "
        "check no key against it. Whoever changes it makes all of those keys invalid.",
    )
    admin_api: bool | None = Field(
        None,
        description="Whether /admin/v1 is there. Without it: only on a server that no other machine can reach.",
    )

    @model_validator(mode="after")
    def _ways_in(self) -> KeysSettings:
        if not self.listed and not self.stored:
            raise ValueError("nobody could ask: list keys, or leave out stored: false")
        seen: set[str] = set()
        for key in self.listed:
            if key.name in seen:
                raise ValueError(f"two keys are called {key.name!r}; names must differ")
            seen.add(key.name)
        return self


class TenantSettings(Settings):
    """A tenant that the file names."""

    name: TenantName
    weight: float = Field(
        1.0, ge=0.01, le=1000, description="Its share of the engine beside others', when all want more."
    )
    limits: LimitSettings | None = Field(None, description="In the place of limits.each_tenant's.")
    disabled: bool = Field(False, description="None of its keys is let in.")


def _differ(tenants: list[TenantSettings]) -> list[TenantSettings]:
    seen: set[str] = set()
    for tenant in tenants:
        if tenant.name in seen:
            raise ValueError(f"two tenants are called {tenant.name!r}; names must differ")
        seen.add(tenant.name)
    return tenants


Tenants = Annotated[list[TenantSettings], AfterValidator(_differ)]
