"""What a deployment file may say: one field a part, each of which has a module of its own here."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, PrivateAttr, model_validator

from tokentrail.gateway.config.base import Settings
from tokentrail.gateway.config.cache import CacheSettings
from tokentrail.gateway.config.database import DatabaseUrl
from tokentrail.gateway.config.filters import FilterSettings
from tokentrail.gateway.config.keys import KeysSettings, Tenants
from tokentrail.gateway.config.ledger import LedgerSettings
from tokentrail.gateway.config.limits import LimitsSettings
from tokentrail.gateway.config.models import ModelSettings
from tokentrail.gateway.config.observing import MetricsSettings, TracingSettings
from tokentrail.gateway.config.prices import PricesSettings
from tokentrail.gateway.config.redis import RedisUrl
from tokentrail.gateway.config.routes import HealthSettings, Problem, RouteSettings, problems


class Deployment(Settings):
    """A deployment file."""

    models: list[ModelSettings] = Field(
        default=[],
        max_length=1000,
        description="Who can answer: engines of this machine, and models of remote upstreams (with a `url`).",
    )
    routes: list[RouteSettings] = Field(
        default=[],
        max_length=1000,
        description="Names that clients ask for, beside those of the models, and who answers then.",
    )
    health: HealthSettings = Field(
        default=HealthSettings(), description="When a target is taken out of service, and how it comes back."
    )
    filters: list[FilterSettings] = Field(
        default=[], max_length=1000, description="Rules, all of which are applied."
    )
    cache: CacheSettings | None = Field(
        default=None, description="Answers kept for questions that are asked again."
    )

    database: DatabaseUrl | None = None
    keys: KeysSettings | None = Field(None, description="Only who has a key is let in.")
    tenants: Tenants = Field([], max_length=1000, description="What tenants get, whatever the database says.")
    prices: PricesSettings | None = Field(None, description="What answers cost.")
    ledger: LedgerSettings | None = Field(
        None, description="Write every request's metadata into the database; `ledger: {}` turns it on."
    )
    metrics: MetricsSettings = Field(
        MetricsSettings(), description="Metrics by route, target and tenant: how many names have labels."
    )
    access_log: str | None = Field(
        None,
        min_length=1,
        description="A file to which a line of JSON is added for each request (relative to this file), or "
        "stdout.",
    )
    tracing: TracingSettings | None = Field(None, description="Traces of requests, sent over OTLP.")
    log_content: bool = Field(
        False,
        description="Prompts and answers stand in the access log and in traces, for all who read those.",
    )
    redis: RedisUrl | None = Field(
        default=None,
        description="Redis, in which several gateways share what they keep and count: redis://HOST:PORT/NUMBER.",
    )

    limits: LimitsSettings | None = Field(None, description="How much keys and tenants may ask.")

    _lines: dict[tuple[int | str, ...], int] = PrivateAttr(default_factory=dict)
    _file: str = PrivateAttr(default="deploy.yaml")

    def where(self, *path: int | str) -> str:
        """`file:line` of a setting, or of what is around it: `where("models", 0, "flags")`."""
        at = path
        while at and at not in self._lines:
            at = at[:-1]
        return f"{self._file}:{self._lines.get(at, 1)}"

    def problems(self) -> Iterator[Problem]:
        """What is wrong between settings that are each right."""
        yield from problems(self.models, self.routes)

    @model_validator(mode="after")
    def _names_differ(self) -> Deployment:
        seen: set[str] = set()
        for rule in self.filters:
            if rule.name in seen:
                raise ValueError(f"two filters are called {rule.name!r}; names must differ")
            seen.add(rule.name)
        return self

    @model_validator(mode="after")
    def _judges_are_there(self) -> Deployment:
        names = {one.name for one in (*self.models, *self.routes)}
        for rule in self.filters:
            asked = rule.moderation
            if names and asked is not None and asked.url is None and asked.model not in names:
                raise ValueError(
                    f"the filter {rule.name!r} asks the model {asked.model!r}, which is not in this file"
                )
        return self

    @model_validator(mode="after")
    def _content_goes_somewhere(self) -> Deployment:
        if self.log_content and self.access_log is None and self.tracing is None:
            raise ValueError(
                "log_content is true, and there is neither an access_log nor tracing that would have it"
            )
        return self

    @model_validator(mode="after")
    def _redis_is_there(self) -> Deployment:
        for name, part in (("cache", self.cache), ("limits", self.limits)):
            if self.redis is None and part is not None and part.store == "redis":
                raise ValueError(f"{name}.store is redis, and there is no `redis:` that says where it is")
        return self

    @model_validator(mode="after")
    def _money_has_prices(self) -> Deployment:
        limits = [] if self.limits is None else [self.limits.each_key, self.limits.each_tenant]
        limits += [one.limits for one in self.tenants if one.limits is not None]
        limits += [one.limits for one in (self.keys.listed if self.keys else ()) if one.limits is not None]
        if self.prices is None and any(one.money_per_day or one.money_per_month for one in limits):
            raise ValueError("a limit is of money, and there are no `prices:` that say what answers cost")
        return self
