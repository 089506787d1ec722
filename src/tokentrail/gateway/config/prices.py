"""What answers cost."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from tokentrail.gateway.config.base import Settings

_Price = Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=13, decimal_places=6)]


class PriceSettings(Settings):
    """Of a million tokens each."""

    input: _Price = Field(description="Of the prompt, and of texts that become vectors.")
    cached_input: _Price | None = Field(
        None, description="Of what of a prompt was found in the prefix cache; without it, as `input`."
    )
    output: _Price = Field(Decimal(0), description="Of the answer, thoughts included.")


class PricesSettings(Settings):
    """What a million tokens cost, by model. Requests cost what their model costs when they are answered."""

    currency: str = Field("USD", pattern=r"^[A-Z]{3}$", description="Three letters, as ISO 4217 has them.")
    models: dict[str, PriceSettings] = Field(
        description="By the name of the model that answered (a target's name before the one that was asked for); "
        "`*` is every other one. A model without a price costs nothing."
    )
