"""What was used: sums over rows and over days whose rows are no longer kept."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, case, func, literal, select, union_all

from tokentrail.gateway.ledger.entry import REFUSED, RUNNING
from tokentrail.gateway.ledger.prices import written
from tokentrail.gateway.ledger.retention import DAY
from tokentrail.gateway.ledger.tables import days, requests
from tokentrail.protocol import InvalidRequest

DIMENSIONS = ("day", "tenant", "key", "route", "target", "model", "state")
_TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_OWN_USE = "%:%"
"""Names such as filter:harm, in the place of a key's id, which has no colon."""
_EPOCH = datetime.date(1970, 1, 1)


class UsageLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sums of the requests that have the named things in common."""

    day: str | None = None
    """As YYYY-MM-DD, in UTC."""
    tenant: str | None = None
    key: str | None = None
    route: str | None = None
    target: str | None = None
    model: str | None = None
    state: str | None = None
    requests: int = msgspec.field()
    """All of them; below, those of them that were not admitted, and those that still run."""
    refused: int = msgspec.field()
    running: int = msgspec.field()
    prompt_tokens: int = msgspec.field()
    cached_tokens: int = msgspec.field()
    output_tokens: int = msgspec.field()
    reasoning_tokens: int = msgspec.field()
    cost: str = msgspec.field()
    """An exact decimal number."""
    currency: str = msgspec.field()
    """Empty where nothing has a price."""


class UsageQuestion(msgspec.Struct, kw_only=True):
    """What is to be summed up, and by what."""

    by: Sequence[str] = ("day",)
    since: datetime.date | None = None
    until: datetime.date | None = None
    """The last day that counts."""
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    own_use: bool = True
    """What the gateway itself asked of models, for the tenants' sake (filters, classifiers), counts as well."""

    def check(self) -> None:
        """Raises `InvalidRequest`."""
        for name in self.by:
            if name not in DIMENSIONS:
                raise InvalidRequest(f"by must be of {', '.join(DIMENSIONS)}, not {name[:40]!r}.", param="by")
        if self.since is not None and self.until is not None and self.until < self.since:
            raise InvalidRequest(f"to ({self.until}) is before from ({self.since}).", param="to")


def day_of(text: str, param: str) -> datetime.date:
    """Raises `InvalidRequest`."""
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise InvalidRequest(
            f"{param} must be a day such as 2026-12-31, not {text[:40]!r}.", param=param
        ) from None


def usage(connection: Connection, question: UsageQuestion) -> list[UsageLine]:
    """One line for each combination that occurs, in order; several where currencies differ. Requests that run count
    with what they are known to have used. Raises `InvalidRequest`.
    """
    question.check()
    by = list(dict.fromkeys(question.by))
    rows = _part(requests, question, requests.c.received // DAY, literal(1))
    sums = _part(days, question, days.c.day, days.c.requests)
    both = union_all(rows, sums).subquery()
    group = [both.c[name] for name in (*by, "currency")]
    counts = ["requests", "refused", "running", *_TOKENS, "cost"]
    statement = (
        select(*group, *(func.sum(both.c[name]).label(name) for name in counts))
        .group_by(*group)
        .order_by(*group)
    )
    return [_line(by, row) for row in connection.execute(statement).mappings()]


def billed(connection: Connection, tenant: str, key: str | None, since: float) -> tuple[int, int]:
    """Tokens and cost of a tenant, or of one of its keys, of what was received from the second `since` on. Of days
    whose rows are no longer kept, those count that have begun since then.
    """
    found = []
    for table, at, first in ((requests, requests.c.received, int(since * 1e6)),
                             (days, days.c.day, math.ceil(since * 1e6 / DAY))):  # fmt: skip
        tokens = func.sum(table.c.prompt_tokens + table.c.output_tokens)
        mine = table.c.tenant == tenant, table.c.key.not_like(_OWN_USE)
        statement = select(tokens, func.sum(table.c.cost)).where(*mine, at >= first)
        if key is not None:
            statement = statement.where(table.c.key == key)
        found.append(connection.execute(statement).one())
    return sum(int(one[0] or 0) for one in found), sum(int(one[1] or 0) for one in found)


def _part(table: Any, question: UsageQuestion, day: ColumnElement[int], count: ColumnElement[int]) -> Any:
    columns = [day.label("day"), *(table.c[name] for name in DIMENSIONS[1:]), table.c.currency]
    of = {
        "requests": count,
        "refused": case((table.c.state == REFUSED, count), else_=0),
        "running": case((table.c.state == RUNNING, count), else_=0),
        **{name: table.c[name] for name in (*_TOKENS, "cost")},
    }
    wanted = select(*columns, *(value.label(name) for name, value in of.items()))
    for name in ("tenant", "key", "model"):
        value = getattr(question, name)
        if value is not None:
            wanted = wanted.where(table.c[name] == value)
    if not question.own_use:
        wanted = wanted.where(table.c.key.not_like(_OWN_USE))
    # By the row's own time, so that an index can be used.
    at, unit = (table.c.day, 1) if table is days else (table.c.received, DAY)
    if question.since is not None:
        wanted = wanted.where(at >= (question.since - _EPOCH).days * unit)
    if question.until is not None:
        wanted = wanted.where(at < ((question.until - _EPOCH).days + 1) * unit)
    return wanted


def _line(by: Sequence[str], row: Any) -> UsageLine:
    names: dict[str, Any] = {name: row[name] for name in by}
    if "day" in names:
        names["day"] = (_EPOCH + datetime.timedelta(days=int(names["day"]))).isoformat()
    counts: dict[str, Any] = {name: int(row[name]) for name in ("requests", "refused", "running", *_TOKENS)}
    return UsageLine(**names, **counts, cost=written(int(row["cost"])), currency=row["currency"])
