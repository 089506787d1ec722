"""What clients are told of their limits: headers as OpenAI has them, refusals that say which limit and until when."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tokentrail.gateway.limits.meters import MONEY, Bound
from tokentrail.gateway.limits.store import Amounts, Kind, Reading, Unit
from tokentrail.protocol import InvalidRequest, TokentrailError

_WORDS = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "concurrent_requests": "requests at once",
    "tokens_per_day": "tokens a day",
    "tokens_per_month": "tokens a month",
    "money_per_day": "of costs a day",
    "money_per_month": "of costs a month",
}
_OWNERS = {"key": "this key", "tenant": "this key's tenant"}
_HEADERS = {
    "requests_per_minute": "requests",
    "tokens_per_minute": "tokens",
    "tokens_per_day": "tokens-per-day",
    "tokens_per_month": "tokens-per-month",
    "money_per_day": "money-per-day",
    "money_per_month": "money-per-month",
}
_SOON_MS = 1000
"""When to ask again where nobody can know."""


class LimitUse(msgspec.Struct, kw_only=True):
    """A limit, and how much of it is used now."""

    name: str
    """That of the setting, such as tokens_per_day."""
    of: str
    """Whose: key or tenant."""
    limit: int | float
    used: int | float
    """Reservations of requests that run included. Money in the currency of the price table."""
    resets_at: int | None
    """Of a day or a month: when it ends. Unix seconds."""


def use_of(bound: Bound, reading: Reading) -> LimitUse:
    money = bound.meter.unit is Unit.MONEY
    limit, used = bound.meter.limit, reading.used
    return LimitUse(
        name=bound.name,
        of=bound.of,
        limit=limit / MONEY if money else limit,
        used=used / MONEY if money else used,
        resets_at=int(bound.meter.until) if bound.quota else None,
    )


class RateLimited(TokentrailError):
    """A limit does not let the request through now."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"


class NeverPossible(InvalidRequest):
    """The request alone is more than a limit."""

    code = "request_exceeds_limit"


def headers_of(bounds: Sequence[Bound], readings: Sequence[Reading]) -> dict[str, str]:
    """`x-ratelimit-*`: of the key's and the tenant's limits, the one that has the least left."""
    tightest: dict[str, tuple[int, int, int, Unit]] = {}
    for bound, reading in zip(bounds, readings, strict=False):
        kind = _HEADERS.get(bound.name)
        if kind is None:
            continue
        limit = bound.meter.limit
        found = (max(0, limit - reading.used), limit, reading.reset_ms, bound.meter.unit)
        if kind not in tightest or found < tightest[kind]:
            tightest[kind] = found
    headers = {}
    for kind, (left, limit, reset, unit) in tightest.items():
        headers[f"x-ratelimit-limit-{kind}"] = _amount(limit, unit)
        headers[f"x-ratelimit-remaining-{kind}"] = _amount(left, unit)
        headers[f"x-ratelimit-reset-{kind}"] = duration(reset)
    return headers


def duration(ms: int) -> str:
    """As OpenAI writes it: 850ms, 12.5s, 6m0s, 1h0m0s."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, seconds = divmod(ms / 1000, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def refusal(
    bounds: Sequence[Bound], readings: Sequence[Reading], amounts: Amounts, ends: str = ""
) -> RateLimited:
    """Of the limits that refuse, the one that takes longest to have room is told.

    `ends`: when that limit's day or month ends, for people (see `longest`).
    """
    bound, reading = longest(bounds, readings)
    unit = bound.meter.unit
    limit, used = _amount(bound.meter.limit, unit), _amount(reading.used, unit)
    wanted = _amount(amounts[unit], unit)
    what, owner = _WORDS[bound.name], _OWNERS[bound.of]
    wait = reading.wait_ms if reading.wait_ms >= 0 else _SOON_MS
    if bound.quota:
        error = RateLimited(
            f"You exceeded your current quota: {owner} may use {limit} {what}; {used} are used or reserved, and this "
            f"request may need {wanted}. The next {'day' if bound.name.endswith('day') else 'month'} begins at {ends}.",
            code="insufficient_quota",
        )
        error.type = "insufficient_quota"
    elif bound.meter.kind is Kind.COUNT:
        error = RateLimited(
            f"Rate limit reached: {owner} may have {limit} {what}, and has as many. Please try again when one of them "
            "has ended."
        )
    else:
        error = RateLimited(
            f"Rate limit reached: {owner} may use {limit} {what}. Used {used}, requested {wanted}. Please try again in "
            f"{duration(wait)}."
        )
        error.type = "tokens" if unit is Unit.TOKENS else "requests"
    error.headers = {"Retry-After": str(max(1, math.ceil(wait / 1000))), **headers_of(bounds, readings)}
    if bound.quota:
        # To OpenAI's and Anthropic's clients, which would try again in a moment.
        error.headers["x-should-retry"] = "false"
    return error


def longest(bounds: Sequence[Bound], readings: Sequence[Reading]) -> tuple[Bound, Reading]:
    """The refusing limit that takes longest to have room."""
    refusing = [pair for pair in zip(bounds, readings, strict=True) if pair[1].refused]
    return max(refusing, key=lambda pair: (pair[0].quota, pair[1].wait_ms))


def never(bound: Bound, amounts: Amounts, prompt: int, *, fixed: bool) -> NeverPossible:
    """`prompt`: its tokens. `fixed`: how long the answer may become was said by the request."""
    unit = bound.meter.unit
    limit, wanted = _amount(bound.meter.limit, unit), _amount(amounts[unit], unit)
    answer = amounts[Unit.TOKENS] - prompt
    needs = f"{wanted} {'tokens' if unit is Unit.TOKENS else 'of costs'}"
    return NeverPossible(
        f"Request too large: it may need {needs} ({prompt} tokens of its prompt, up to {answer} of its answer), and "
        f"{_OWNERS[bound.of]} may use {limit} {_WORDS[bound.name]} in all, so that waiting does not help. "
        + ("Lower max_tokens or shorten the prompt." if fixed else "Shorten the prompt."),
        param="max_tokens" if fixed and prompt < bound.meter.limit else None,
    )


def _amount(amount: int, unit: Unit) -> str:
    return f"{amount / MONEY:.6f}".rstrip("0").rstrip(".") if unit is Unit.MONEY else str(amount)
