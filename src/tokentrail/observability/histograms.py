"""Histograms as Prometheus defines them, and the buckets that are used."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

# Bucket bounds. Seconds cover a 1B model on a GPU up to a 70B one on a CPU.
FIRST_TOKEN = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.08,
    0.15,
    0.3,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
LATENCY = (
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
TOKENS = tuple(float(1 << k) for k in range(18))


class Histogram:
    """Counts of observations per bucket, as Prometheus defines histograms."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """`count` observations of `value`. A bound itself belongs to its own bucket (`le`)."""
        self.counts[bisect.bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        totals = itertools.accumulate(self.counts)
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return [(name, float(total)) for name, total in zip(names, totals, strict=True)]
