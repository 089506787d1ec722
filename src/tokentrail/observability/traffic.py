"""Metrics by route, target and tenant, with a bound on how many names there may be.

A name gets a label of its own as long as there is room, and one that nobody has used for an hour makes room for a new
one; what finds none is counted as `other`. So a flood of new names costs neither memory nor Prometheus's series, and
counters never fall.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tokentrail.observability.histograms import FIRST_TOKEN, LATENCY, PER_TOKEN, Histogram

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

OTHER = "other"
_IDLE = 3600.0
"""Seconds after which a name's series make room. Prometheus then sees them end, as those of a process that ended."""


class Ended(NamedTuple):
    """A request that is over, as metrics see it."""

    route: str
    target: str
    tenant: str
    outcome: str
    """ok, refused (the request's fault), limited, aborted or failed."""
    seconds: float
    first_token: float | None = None
    """Seconds until then."""
    per_token: float | None = None
    """Seconds between tokens, on average."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Names:
    """Which names have labels of their own: `limit` of them at most."""

    def __init__(
        self,
        limit: int,
        *,
        forget: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`forget`: told the name that makes room."""
        self._limit = limit
        self._forget = forget
        self._clock = clock
        self._used: OrderedDict[str, float] = OrderedDict()

    def __call__(self, name: str) -> str:
        used, now = self._used, self._clock()
        if name not in used and len(used) >= self._limit:
            oldest = next(iter(used), None)
            if oldest is None or now - used[oldest] < _IDLE:
                return OTHER
            del used[oldest]
            if self._forget is not None:
                self._forget(oldest)
        used[name] = now
        used.move_to_end(name)
        return name


class _Series:
    """All that is counted of one route, target and tenant."""

    __slots__ = (
        "cached_tokens",
        "completion_tokens",
        "first_token",
        "latency",
        "outcomes",
        "per_token",
        "prompt_tokens",
    )

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.first_token = Histogram(FIRST_TOKEN)
        self.per_token = Histogram(PER_TOKEN)
        self.latency = Histogram(LATENCY)


_LABELS = ["route", "target", "tenant"]
_Key = tuple[str, str, str]


class Traffic:
    """Requests through the gateway."""

    def __init__(
        self,
        *,
        tenants: int = 50,
        targets: int = 100,
        series: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Of how many there are labels: tenants, routes and targets (each), and combinations of them."""
        self._tenants = Names(tenants, forget=self._forgetting(2), clock=clock)
        self._routes = Names(targets, forget=self._forgetting(0), clock=clock)
        self._targets = Names(targets, forget=self._forgetting(1), clock=clock)
        self._most = series
        self._series: dict[_Key, _Series] = {}

    def add(self, ended: Ended) -> None:
        key = (self._routes(ended.route), self._targets(ended.target), self._tenants(ended.tenant))
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._most:
                key = (OTHER, OTHER, OTHER)
            series = self._series.setdefault(key, _Series())
        series.outcomes[ended.outcome] = series.outcomes.get(ended.outcome, 0) + 1
        series.prompt_tokens += ended.prompt_tokens
        series.cached_tokens += ended.cached_tokens
        series.completion_tokens += ended.completion_tokens
        if ended.outcome == "ok":
            series.latency.observe(ended.seconds)
        if ended.first_token is not None:
            series.first_token.observe(ended.first_token)
        if ended.per_token is not None:
            series.per_token.observe(ended.per_token)

    def collect(self) -> Iterator[Metric]:
        """For `Metrics.collect`. In another thread than `add`: numbers may differ by a request."""
        from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

        every = list(self._series.items())
        requests = CounterMetricFamily(
            "tokentrail_gateway_requests",
            "Requests by how they ended: ok, refused, limited, aborted, failed",
            labels=[*_LABELS, "outcome"],
        )
        for key, series in every:
            for outcome, count in list(series.outcomes.items()):
                requests.add_metric([*key, outcome], count)
        yield requests
        for field, text in (
            ("prompt_tokens", "Prompt tokens of requests"),
            ("cached_tokens", "Prompt tokens that were not computed again"),
            ("completion_tokens", "Tokens of answers"),
        ):
            tokens = CounterMetricFamily(f"tokentrail_gateway_{field}", text, labels=_LABELS)
            for key, series in every:
                tokens.add_metric(key, getattr(series, field))
            yield tokens
        for name, field, text in (
            ("time_to_first_token_seconds", "first_token", "Received → first token"),
            ("time_per_output_token_seconds", "per_token", "First token → last, by the tokens between"),
            (
                "request_latency_seconds",
                "latency",
                "Received → end of the response, of those that ended well",
            ),
        ):
            family = HistogramMetricFamily(f"tokentrail_gateway_{name}", text, labels=_LABELS)
            for key, series in every:
                histogram: Histogram = getattr(series, field)
                family.add_metric(key, histogram.buckets(), histogram.sum)
            yield family

    def _forgetting(self, place: int) -> Callable[[str], None]:
        def forget(name: str) -> None:
            self._series = {key: series for key, series in self._series.items() if key[place] != name}

        return forget


__all__: Sequence[str] = ["OTHER", "Ended", "Names", "Traffic"]
