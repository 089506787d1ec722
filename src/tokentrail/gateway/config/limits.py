"""How much may be asked: rates, quotas, and what happens where they cannot be looked up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from tokentrail.gateway.config.base import Settings

_MOST = 10**12
_MOST_MONEY = 9_000_000
"""Sums are kept in billionths, as whole numbers that a floating-point number holds exactly (below 2^53)."""


class LimitSettings(Settings):
    """What one key, or one tenant, may ask for. A limit that is not given is the default's (`each_key`, `each_tenant`);
    null: there is none.
    """

    requests_per_minute: int | None = Field(
        default=None, gt=0, le=_MOST, description="Requests begun within any minute."
    )
    tokens_per_minute: int | None = Field(
        default=None,
        gt=0,
        le=_MOST,
        description="Tokens, of prompts and answers, of requests begun within any minute.",
    )
    concurrent_requests: int | None = Field(
        default=None, gt=0, le=10**6, description="Requests that are being answered at once."
    )
    tokens_per_day: int | None = Field(default=None, gt=0, le=_MOST, description="Tokens in a calendar day.")
    tokens_per_month: int | None = Field(
        default=None, gt=0, le=_MOST, description="Tokens in a calendar month."
    )
    money_per_day: float | None = Field(
        default=None,
        gt=0,
        le=_MOST_MONEY,
        description="What answers may cost in a calendar day, in the currency of `prices`.",
    )
    money_per_month: float | None = Field(
        default=None, gt=0, le=_MOST_MONEY, description="What answers may cost in a calendar month."
    )

    def over(self, default: LimitSettings) -> LimitSettings:
        """What is given here, null included, in the place of `default`'s."""
        return default.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class LimitsSettings(Settings):
    """Limits of keys and tenants. A request must be within those of its key and within those of its tenant."""

    each_key: LimitSettings = Field(
        default=LimitSettings(), description="Of every key, but for what its own `limits` say."
    )
    each_tenant: LimitSettings = Field(
        default=LimitSettings(), description="Of every tenant, but for what its own `limits` say."
    )
    store: Literal["memory", "redis"] = Field(
        default="memory",
        description="Where is counted: in this process, or in `redis`, for all gateways that share it.",
    )
    on_redis_failure: Literal["local", "open", "closed"] = Field(
        default="local",
        description="While Redis does not answer: local: each gateway counts by itself; open: nothing is limited; "
        "closed: requests are refused with 503.",
    )
    time_zone: str = Field(
        default="UTC", description="Whose days and months quotas have, such as Asia/Shanghai."
    )
    answer_tokens: int = Field(
        default=1024,
        gt=0,
        le=10**6,
        description="Reserved for an answer without max_tokens, until its end tells how many it has.",
    )
    lease_s: float = Field(
        default=60,
        ge=5,
        le=3600,
        description="After so many seconds without a sign of the gateway that took it (which gives one every third "
        "of that), a request counts as ended, with what it was last known to have used.",
    )

    @field_validator("time_zone")
    @classmethod
    def _known(cls, name: str) -> str:
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(name)
        except (KeyError, OSError, ValueError):
            raise ValueError(
                f"there is no time zone {name!r}; give a name such as UTC or Europe/Berlin"
            ) from None
        return name
