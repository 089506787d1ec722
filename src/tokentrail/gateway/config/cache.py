"""Answers that are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokentrail.gateway.config.base import Settings


class CacheSettings(Settings):
    """Whole answers, for questions that are asked again. Their texts are kept with them."""

    store: Literal["memory", "redis"] = Field(
        "memory", description="Where: in this process, or in `redis`, which several gateways share."
    )
    memory_mib: int = Field(
        256,
        gt=0,
        le=2**20,
        description="MiB at most, in memory; the least recently asked leave first. One answer may take a quarter "
        "(in Redis too).",
    )
    lifetime_s: float = Field(3600, gt=0, description="Seconds that an answer is used.")
    outage_s: float = Field(
        0,
        ge=0,
        description="Seconds in which an answer may stand in, marked as such, when nobody can answer the same "
        "question. If it is not 0, answers that would be others the next time are kept for this as well.",
    )
