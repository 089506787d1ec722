"""Tokens → money, in whole numbers: sums of any length are exact."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from tokentrail.gateway.config.prices import PriceSettings, PricesSettings

UNIT = 1_000_000_000
"""Costs are whole billionths of the currency."""


class Price(NamedTuple):
    """Of a million tokens, in millionths of the currency: so one token costs as many million-millionths."""

    input: int = 0
    cached: int = 0
    output: int = 0

    def of(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """In billionths, rounded half up. Exact for prices with at most three decimals."""
        trillionths = (
            (prompt_tokens - cached_tokens) * self.input
            + cached_tokens * self.cached
            + output_tokens * self.output
        )
        return (trillionths + 500) // 1000


FREE = Price()


class PriceList:
    """What answers of each model cost."""

    def __init__(self, settings: PricesSettings | None) -> None:
        self.currency = "" if settings is None else settings.currency
        """Empty: nothing has a price."""
        self._prices: Mapping[str, Price] = (
            {} if settings is None else {name: _price(one) for name, one in settings.models.items()}
        )
        self._other = self._prices.get("*", FREE)

    def of(self, target: str, model: str) -> Price:
        """`target`: who answered; `model`: who was asked."""
        found = self._prices.get(target) or self._prices.get(model)
        return self._other if found is None else found


def _price(settings: PriceSettings) -> Price:
    cached = settings.input if settings.cached_input is None else settings.cached_input
    return Price(_millionths(settings.input), _millionths(cached), _millionths(settings.output))


def _millionths(amount: Decimal) -> int:
    return int(amount.scaleb(6))


def written(billionths: int) -> str:
    """An amount as people write it, with all of its digits and at least two decimals: 1500000000 → 1.50."""
    whole, rest = divmod(abs(billionths), UNIT)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' * (billionths < 0)}{whole}.{decimals}"
