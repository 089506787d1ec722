"""What is written down of each request, and for how long."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokentrail.gateway.config.base import Settings


class LedgerSettings(Settings):
    """Every request's metadata in the database; never its text."""

    keep_days: int | None = Field(
        None,
        gt=0,
        le=36500,
        description="Days that a request's row is kept; its day's sums stay. Without it, all rows are kept.",
    )
    checkpoint_s: float = Field(
        1.0, gt=0, le=60, description="Seconds between writing down how much of a stream has been sent."
    )
    refused_rows_per_s: int = Field(
        20,
        ge=0,
        le=10_000,
        description="Refused requests that get a row of their own; others of the same second are counted by day, "
        "tenant, key and model.",
    )
    refused_rows_per_day: int = Field(
        100_000,
        ge=0,
        le=100_000_000,
        description="Of those, so many a day (UTC) of one server; then all are counted.",
    )
    on_failure: Literal["refuse", "spool"] = Field(
        "refuse",
        description="While the database fails: refuse: new requests get 503; spool: rows are kept in a file, "
        "and written to the database when it is back.",
    )
    spool_folder: str | None = Field(
        None,
        min_length=1,
        description="Where such files are kept, relative to this file. Without it, beside it.",
    )
    patience_s: float = Field(
        10.0,
        gt=0,
        le=300,
        description="Seconds that an answer waits for its row before it counts as failing.",
    )
    lease_s: float = Field(
        30.0,
        ge=5,
        le=3600,
        description="After so many seconds without a sign of the gateway that has them (which gives one every sixth "
        "of that), streams are billed at their last checkpoint.",
    )
