"""How fast tokens come, and how late: from what the metrics count anyway."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tokentrail.observability import Metrics
from tokentrail.observability.histograms import FIRST_TOKEN, PER_TOKEN, Histogram
from tokentrail.protocol import EngineStats
from tokentrail.server.watching.schema import LiveRates, Percentiles

_WINDOW = 2.0
"""Seconds over which tokens are counted …"""
_LATENCY_WINDOW = 60.0
"""… and latencies are."""
_SPACING = 0.1


class _Counts(NamedTuple):
    at: float
    generated: int
    prompt: int
    first_token: tuple[int, ...]
    inter_token: tuple[int, ...]


class Rates:
    """Keeps counts of the last minute while somebody looks; the first one who does compares with the server's start."""

    def __init__(self, metrics: Metrics, started: float) -> None:
        self._metrics = metrics
        zero = (0,) * (len(FIRST_TOKEN) + 1), (0,) * (len(PER_TOKEN) + 1)
        self._start = _Counts(started, 0, 0, *zero)
        self._kept: deque[_Counts] = deque()

    def look(self, now: float, stats: EngineStats) -> LiveRates | None:
        first_token = _sum(self._metrics, "first_token")
        inter_token = _sum(self._metrics, "inter_token")
        kept = self._kept
        if not kept or now - kept[-1].at >= _SPACING:
            kept.append(
                _Counts(
                    now,
                    stats.generated_tokens,
                    stats.prompt_tokens,
                    first_token,
                    inter_token,
                )
            )
        while len(kept) > 1 and kept[1].at <= now - _LATENCY_WINDOW:
            kept.popleft()
        latest = kept[-1]
        recent = next((counts for counts in reversed(kept) if counts.at <= latest.at - _WINDOW), kept[0])
        if recent is latest:
            return None
        seconds = latest.at - recent.at
        # Within the first minute of somebody's looking: since the server started.
        base = kept[0] if kept[0].at <= now - _LATENCY_WINDOW else self._start
        return LiveRates(
            window_seconds=seconds,
            tokens_per_second=(latest.generated - recent.generated) / seconds,
            prompt_tokens_per_second=(latest.prompt - recent.prompt) / seconds,
            latency_window_seconds=latest.at - base.at,
            first_token=_percentiles(FIRST_TOKEN, base.first_token, latest.first_token),
            inter_token=_percentiles(PER_TOKEN, base.inter_token, latest.inter_token),
        )


def _sum(metrics: Metrics, name: str) -> tuple[int, ...]:
    """A histogram's counts, of all models."""
    histograms: list[Histogram] = [getattr(one, name) for one in (metrics, *metrics.others)]
    return tuple(map(sum, zip(*(histogram.counts for histogram in histograms), strict=True)))


def _percentiles(bounds: Sequence[float], before: Sequence[int], after: Sequence[int]) -> Percentiles:
    counts = [now - then for now, then in zip(after, before, strict=True)]
    total = sum(counts)
    p50, p90, p99 = (quantile(bounds, counts, part) if total else None for part in (0.5, 0.9, 0.99))
    return Percentiles(count=total, p50=p50, p90=p90, p99=p99)


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """As Prometheus's `histogram_quantile` has it: linear within a bucket, and the highest bound above all. `counts`:
    of each bucket alone, at least one of them not 0.
    """
    rank = part * sum(counts)
    below = 0
    for index, count in enumerate(counts[:-1]):
        if count and below + count >= rank:
            low = bounds[index - 1] if index else 0.0
            return low + (bounds[index] - low) * (rank - below) / count
        below += count
    return bounds[-1]
