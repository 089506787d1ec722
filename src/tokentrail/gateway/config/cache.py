"""Answers that are kept."""

from __future__ import annotations

from pydantic import Field

from tokentrail.gateway.config.base import Settings


class CacheSettings(Settings):
    """Whole answers kept in memory, for questions that are asked again. Their texts are kept with them."""

    memory_mib: int = Field(
        256, gt=0, le=2**20, description="MiB at most; the least recently asked leave first."
    )
    lifetime_s: float = Field(3600, gt=0, description="Seconds that an answer is kept.")
