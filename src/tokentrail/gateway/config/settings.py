"""What a deployment file may say: one field a part, each of which has a module of its own here."""

from __future__ import annotations

from pydantic import Field, model_validator

from tokentrail.gateway.config.base import Settings
from tokentrail.gateway.config.cache import CacheSettings
from tokentrail.gateway.config.database import DatabaseUrl
from tokentrail.gateway.config.filters import FilterSettings
from tokentrail.gateway.config.keys import KeysSettings, Tenants
from tokentrail.gateway.config.redis import RedisUrl


class Deployment(Settings):
    """A deployment file."""

    filters: list[FilterSettings] = Field([], max_length=1000, description="Rules, all of which are applied.")
    cache: CacheSettings | None = Field(None, description="Answers kept for questions that are asked again.")

    database: DatabaseUrl | None = None
    keys: KeysSettings | None = Field(None, description="Only who has a key is let in.")
    tenants: Tenants = Field([], max_length=1000, description="What tenants get, whatever the database says.")
    redis: RedisUrl | None = Field(
        None,
        description="Redis, in which several gateways share what they keep and count: redis://HOST:PORT/NUMBER.",
    )

    @model_validator(mode="after")
    def _names_differ(self) -> Deployment:
        seen: set[str] = set()
        for rule in self.filters:
            if rule.name in seen:
                raise ValueError(f"two filters are called {rule.name!r}; names must differ")
            seen.add(rule.name)
        return self

    @model_validator(mode="after")
    def _redis_is_there(self) -> Deployment:
        if self.redis is None and self.cache is not None and self.cache.store == "redis":
            raise ValueError("cache.store is redis, and there is no `redis:` that says where it is")
        return self
