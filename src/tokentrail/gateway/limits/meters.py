"""What is counted for whom: from the settings of a key and its tenant to the meters of a request."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from tokentrail.answer import Identity
from tokentrail.gateway.config import LimitSettings, LimitsSettings
from tokentrail.gateway.keys.ring import KeyRing
from tokentrail.gateway.limits.store import Kind, Meter, Unit

MONEY = 10**9
"""Of `Unit.MONEY` in one of the currency."""
_FRESH = 1.0
"""Seconds after which a key's limits are looked up again."""
_MOST_KNOWN = 10_000

Records = Callable[[Identity], "tuple[LimitSettings | None, LimitSettings | None]"]
"""Limits that a key and its tenant have of their own."""


def limits_of(ring: KeyRing) -> Records:
    """Those of a ring's keys and tenants."""

    def records(identity: Identity) -> tuple[LimitSettings | None, LimitSettings | None]:
        key = ring.key(identity.key)
        tenant = ring.tenant(identity.tenant)
        return _own({} if key is None else key.limits), _own(tenant.limits)

    return records


def _own(limits: dict[str, Any]) -> LimitSettings | None:
    return LimitSettings.model_validate(limits) if limits else None


class Bound(msgspec.Struct, frozen=True):
    """One limit of a request."""

    meter: Meter
    of: str
    """Whose: key or tenant."""
    name: str
    """That of the setting."""
    since: float = 0.0
    """Of a quota: the second in which its period began."""

    @property
    def quota(self) -> bool:
        return self.meter.kind is Kind.PERIOD


class _Period(NamedTuple):
    name: str
    since: float
    until: float


class Meters:
    """The limits of whoever asks."""

    def __init__(
        self, settings: LimitsSettings, records: Records | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._records = records
        self._clock = clock
        self._zone = ZoneInfo(settings.time_zone)
        self._known: dict[tuple[str, str], tuple[float, list[Bound]]] = {}

    def of(self, identity: Identity) -> list[Bound]:
        now = self._clock()
        who = identity.tenant, identity.key
        known = self._known.get(who)
        if known is not None and known[0] > now:
            return known[1]
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        settings = self._settings
        key, tenant = (None, None) if self._records is None else self._records(identity)
        day, month = self._calendar(now)
        none = _Period("", 0.0, 0.0)
        bounds: list[Bound] = []
        for scope, id, default, own in (
            # Without keys, all that a tenant asks counts as asked with one key.
            ("key", identity.key, settings.each_key, key),
            ("tenant", "", settings.each_tenant, tenant),
        ):
            limits = default if own is None else own.over(default)
            prefix = f"{scope}:{id}"
            for name, kind, unit, period in (
                ("requests_per_minute", Kind.WINDOW, Unit.REQUESTS, none),
                ("tokens_per_minute", Kind.WINDOW, Unit.TOKENS, none),
                ("concurrent_requests", Kind.COUNT, Unit.REQUESTS, none),
                ("tokens_per_day", Kind.PERIOD, Unit.TOKENS, day),
                ("tokens_per_month", Kind.PERIOD, Unit.TOKENS, month),
                ("money_per_day", Kind.PERIOD, Unit.MONEY, day),
                ("money_per_month", Kind.PERIOD, Unit.MONEY, month),
            ):
                limit = getattr(limits, name)
                if limit is None:
                    continue
                most = round(limit * MONEY) if unit is Unit.MONEY else limit
                meter = Meter(f"{prefix}:{name}{period.name}", kind, unit, most, period.until)
                bounds.append(Bound(meter, scope, name, period.since))
        self._known[who] = min(now + _FRESH, day.until), bounds
        return bounds

    def _calendar(self, now: float) -> tuple[_Period, _Period]:
        """The day and the month."""
        here = datetime.fromtimestamp(now, self._zone)
        midnight = here.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        tomorrow = midnight + timedelta(
            days=1
        )  # on the clock on the wall, whatever becomes of it in this night
        first = midnight.replace(day=1)
        following = (midnight.replace(day=28) + timedelta(days=4)).replace(day=1)
        return (
            _Period(f":{here:%Y-%m-%d}", midnight.timestamp(), tomorrow.timestamp()),
            _Period(f":{here:%Y-%m}", first.timestamp(), following.timestamp()),
        )

    def local_time(self, second: float) -> str:
        return datetime.fromtimestamp(second, self._zone).isoformat(timespec="seconds")
