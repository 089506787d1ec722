"""What Prometheus scrapes. Names follow vLLM's, with `tokentrail_` for `vllm:`.

The hot path only adds to Python numbers. `render` builds the text format through `prometheus_client`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tokentrail.observability.histograms import FIRST_TOKEN, LATENCY, PER_TOKEN, TOKENS, Histogram
from tokentrail.observability.traffic import Traffic
from tokentrail.protocol import EngineInfo, EngineStats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

OUTCOMES = ("stop", "length", "abort", "timeout", "error", "rejected")


class Metrics:
    """All metrics of a server process. What others count is fetched by `before_scrape`."""

    def __init__(self, model_name: str = "") -> None:
        self.model_name = model_name
        self.info: EngineInfo | None = None
        self.engine_up = False
        self.engine_restarts = 0
        self.requests = dict.fromkeys(OUTCOMES, 0)
        self.http: dict[tuple[str, str, int], int] = {}
        self.filter_matches: Counter[tuple[str, str, str]] = Counter()
        """By rule, side (input or output) and action."""
        self.response_cache: Counter[str] = Counter()
        """Questions that could have been known: hit or miss; stale: answers that stood in when nobody could answer."""
        self.upstream_failures: Counter[tuple[str, str]] = Counter()
        """By remote model and how it failed: the code of `UpstreamError`."""
        self.traffic: Traffic | None = None
        """By route, target and tenant; where a deployment file is in use."""
        self.log_lines_dropped: Callable[[], int] | None = None
        self.spans_dropped: Callable[[], int] | None = None
        self.in_flight = 0
        self.first_token = Histogram(FIRST_TOKEN)
        self.inter_token = Histogram(PER_TOKEN)
        self.per_output_token = Histogram(PER_TOKEN)
        self.latency = Histogram(LATENCY)
        self.queue_time = Histogram(LATENCY)
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)
        self.stats = EngineStats()
        """The engine's newest numbers. Its counters must not fall, not even when the engine is restarted."""
        self.before_scrape: list[Callable[[], None]] = []

    def http_response(self, method: str, path: str, status: int) -> None:
        """`path`: the route, not the URL, so that ids and nonsense do not become series of their own."""
        key = (method, path, status)
        self.http[key] = self.http.get(key, 0) + 1

    def render(self) -> tuple[bytes, str]:
        """(body, content type) of a scrape."""
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        for refresh in self.before_scrape:
            refresh()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            InfoMetricFamily,
        )

        model = [self.model_name]
        stats = self.stats

        def gauge(name: str, text: str, value: float) -> Metric:
            family = GaugeMetricFamily(f"tokentrail_{name}", text, labels=["model_name"])
            family.add_metric(model, value)
            return family

        def counter(name: str, text: str, value: float) -> Metric:
            family = CounterMetricFamily(f"tokentrail_{name}", text, labels=["model_name"])
            family.add_metric(model, value)
            return family

        def histogram(name: str, text: str, values: Histogram) -> Metric:
            family = HistogramMetricFamily(f"tokentrail_{name}", text, labels=["model_name"])
            family.add_metric(model, values.buckets(), values.sum)
            return family

        if self.info is not None:
            facts = InfoMetricFamily("tokentrail_engine", "The engine that runs", labels=["model_name"])
            names = (
                "architecture",
                "fingerprint",
                "isa",
                "threads",
                "max_model_len",
                "block_size",
                "num_blocks",
            )
            facts.add_metric(model, {name: str(getattr(self.info, name)) for name in names})
            yield facts
        yield gauge("engine_up", "1 while the engine process runs", float(self.engine_up))
        yield counter("engine_restarts", "Engine processes that died and were replaced", self.engine_restarts)
        yield counter("engine_steps", "Steps of the engine", stats.steps)
        yield gauge("num_requests_in_flight", "Requests being answered", self.in_flight)
        yield gauge("num_requests_running", "Sequences in the running batch", stats.running)
        yield gauge("num_requests_waiting", "Sequences that wait to be run", stats.waiting)
        usage = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
        yield gauge("kv_cache_usage_perc", "Part of the KV cache in use, 1 being all of it", usage)
        yield gauge("kv_cache_blocks", "KV blocks there are", stats.blocks_total)
        yield gauge("kv_cache_blocks_used", "KV blocks in use", stats.blocks_used)
        for name, text, field in _ENGINE_COUNTERS:
            yield counter(name, text, getattr(stats, field))

        outcomes = CounterMetricFamily(
            "tokentrail_requests",
            "Requests by how they ended; rejected: the queue was full or the engine down",
            labels=["model_name", "outcome"],
        )
        for outcome, count in self.requests.items():
            outcomes.add_metric([self.model_name, outcome], count)
        yield outcomes
        http = CounterMetricFamily(
            "tokentrail_http_requests", "HTTP responses", labels=["method", "path", "status"]
        )
        for (method, path, status), count in sorted(self.http.items()):
            http.add_metric([method, path, str(status)], count)
        yield http
        if self.filter_matches:
            filters = CounterMetricFamily(
                "tokentrail_filter_matches",
                "Prompts and answers in which a rule found something",
                labels=["rule", "side", "action"],
            )
            for labels, count in sorted(self.filter_matches.items()):
                filters.add_metric(list(labels), count)
            yield filters

        if self.upstream_failures:
            failures = CounterMetricFamily(
                "tokentrail_upstream_failures",
                "Answers that remote upstreams did not give, or not to their end.",
                labels=["target", "reason"],
            )
            for (target, reason), count in sorted(self.upstream_failures.items()):
                failures.add_metric([target, reason.removeprefix("upstream_")], count)
            yield failures
        if self.response_cache:
            known = CounterMetricFamily(
                "tokentrail_response_cache",
                "Questions looked up in the cache of answers",
                labels=["result"],
            )
            for result in ("hit", "miss", "stale"):
                known.add_metric([result], self.response_cache[result])
            yield known

        for name, text, dropped in (
            ("access_log_dropped", "Lines that the access log lost", self.log_lines_dropped),
            ("spans_dropped", "Requests whose spans were lost", self.spans_dropped),
        ):
            if dropped is not None:
                yield CounterMetricFamily(f"tokentrail_{name}", text, value=dropped())
        if self.traffic is not None:
            yield from self.traffic.collect()

        yield histogram("time_to_first_token_seconds", "Received → first token", self.first_token)
        yield histogram("inter_token_latency_seconds", "Token → next token of a sequence", self.inter_token)
        yield histogram(
            "request_time_per_output_token_seconds",
            "First token → last, by the tokens between, per request",
            self.per_output_token,
        )
        yield histogram("e2e_request_latency_seconds", "Received → finished", self.latency)
        yield histogram(
            "request_queue_time_seconds", "Received → first step that had a part of it", self.queue_time
        )
        yield histogram("request_prompt_tokens", "Prompt tokens per request", self.request_prompt_tokens)
        yield histogram(
            "request_generation_tokens", "Generated tokens per request", self.request_generation_tokens
        )


_ENGINE_COUNTERS = (
    ("prompt_tokens", "Prompt tokens computed", "prompt_tokens"),
    ("generation_tokens", "Tokens generated", "generated_tokens"),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", "prefix_queries"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache", "prefix_hits"),
    ("spec_decode_num_draft_tokens", "Tokens drafted and verified", "drafted_tokens"),
    ("spec_decode_num_accepted_tokens", "Drafted tokens that were right", "accepted_tokens"),
    ("num_preemptions", "Sequences that lost their blocks to others", "preemptions"),
)
