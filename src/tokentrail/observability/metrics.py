"""What Prometheus scrapes. Names follow vLLM's, with `tokentrail_` for `vllm:`.

The hot path only adds to Python numbers. `render` builds the text format through `prometheus_client`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tokentrail.observability.histograms import FIRST_TOKEN, LATENCY, PER_TOKEN, TOKENS, Histogram
from tokentrail.observability.processes import process_families
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
        self.filter_failures: Counter[str] = Counter()
        """Times that a rule could not be asked, by its name."""
        self.response_cache: Counter[str] = Counter()
        """Questions that could have been known: hit or miss; stale: answers that stood in when nobody could answer."""
        self.upstream_failures: Counter[tuple[str, str]] = Counter()
        """By remote model and how it failed: the code of `UpstreamError`."""
        self.traffic: Traffic | None = None
        """By route, target and tenant; where a deployment file is in use."""
        self.log_lines_dropped: Callable[[], int] | None = None
        self.spans_dropped: Callable[[], int] | None = None
        self.limited: Counter[tuple[str, str]] = Counter()
        """By whose limit it is (key, tenant) and its name."""
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
        self.block_maps: list[Callable[[], Awaitable[list[bytes]]]] = []
        """Of each local model: asks its engines for the states of their KV blocks (`protocol.BlockStates`)."""
        self.has_engine = True
        """False: its model is remote, or does not run here any more."""
        self.replicas: Sequence[tuple[bool, int, EngineStats]] = ()
        """Of a model that has several engines: whether each is up, its restarts, its numbers."""
        self.moved = 0
        """Sequences that went on on another replica."""
        self.others: list[Metrics] = []
        """Further models of this process."""
        self.more: list[Callable[[], Iterator[Metric]]] = []
        """Further families, made when somebody scrapes."""

    def beside(self) -> Metrics:
        """Those of a further model of this process, which are told with these."""
        other = Metrics()
        self.others.append(other)
        return other

    def of_engine(self, model_name: str) -> Metrics:
        """Those of a model that begins to run here while the server runs. One that ran here before goes on with its
        own, though its engine is another one now.
        """
        known = (one for one in (self, *self.others) if one.model_name == model_name)
        found = next(known, None) or self.beside()
        found.forget_engine()
        found.model_name, found.has_engine = model_name, True
        return found

    def forget_engine(self) -> None:
        """Its engine is let go; what was counted stays."""
        self.has_engine = False
        self.before_scrape.clear()
        self.block_maps.clear()

    def http_response(self, method: str, path: str, status: int) -> None:
        """`path`: the route, not the URL, so that ids and nonsense do not become series of their own."""
        key = (method, path, status)
        self.http[key] = self.http.get(key, 0) + 1

    def render(self) -> tuple[bytes, str]:
        """(body, content type) of a scrape."""
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        for one in (self, *self.others):
            for refresh in one.before_scrape:
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

        models = (self, *self.others)
        engines = [one for one in models if one.has_engine]

        def gauge(name: str, text: str, value: Callable[[Metrics], float]) -> Metric:
            family = GaugeMetricFamily(f"tokentrail_{name}", text, labels=["model_name"])
            for one in engines:
                family.add_metric([one.model_name], value(one))
            return family

        def counter(name: str, text: str, value: Callable[[Metrics], float]) -> Metric:
            family = CounterMetricFamily(f"tokentrail_{name}", text, labels=["model_name"])
            for one in engines:
                family.add_metric([one.model_name], value(one))
            return family

        def histogram(name: str, text: str, values: Callable[[Metrics], Histogram]) -> Metric:
            family = HistogramMetricFamily(f"tokentrail_{name}", text, labels=["model_name"])
            for one in models:
                family.add_metric([one.model_name], values(one).buckets(), values(one).sum)
            return family

        def engine_counter(name: str, text: str, field: str) -> Metric:
            return counter(name, text, lambda one: getattr(one.stats, field))

        if any(one.info is not None for one in engines):
            facts = InfoMetricFamily("tokentrail_engine", "The engine that runs", labels=["model_name"])
            for one in engines:
                if one.info is not None:
                    told = {name: str(getattr(one.info, name)) for name in _ENGINE_FACTS}
                    facts.add_metric([one.model_name], told)
            yield facts
        yield gauge("engine_up", "1 while the engine process runs", lambda one: one.engine_up)
        yield counter(
            "engine_restarts",
            "Engine processes that died and were replaced",
            lambda one: one.engine_restarts,
        )
        yield counter("engine_steps", "Steps of the engine", lambda one: one.stats.steps)
        in_flight = GaugeMetricFamily(
            "tokentrail_num_requests_in_flight", "Requests being answered", labels=["model_name"]
        )
        in_flight.add_metric([self.model_name], self.in_flight)
        yield in_flight
        yield gauge("num_requests_running", "Sequences in the running batch", lambda one: one.stats.running)
        yield gauge("num_requests_waiting", "Sequences that wait to be run", lambda one: one.stats.waiting)
        yield gauge(
            "kv_cache_usage_perc",
            "Part of the KV cache in use, 1 being all of it",
            lambda one: one.stats.blocks_used / one.stats.blocks_total if one.stats.blocks_total else 0.0,
        )
        yield gauge("kv_cache_blocks", "KV blocks there are", lambda one: one.stats.blocks_total)
        yield gauge("kv_cache_blocks_used", "KV blocks in use", lambda one: one.stats.blocks_used)
        for name, text, field in _ENGINE_COUNTERS:
            yield engine_counter(name, text, field)
        yield from self._replicas(engines)

        outcomes = CounterMetricFamily(
            "tokentrail_requests",
            "Requests by how they ended; rejected: the queue was full or the engine down",
            labels=["model_name", "outcome"],
        )
        for one in models:
            for outcome, count in one.requests.items():
                outcomes.add_metric([one.model_name, outcome], count)
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
        if self.filter_failures:
            failures = CounterMetricFamily(
                "tokentrail_filter_failures", "Rules that could not be asked", labels=["rule"]
            )
            for rule, count in sorted(self.filter_failures.items()):
                failures.add_metric([rule], count)
            yield failures

        if self.limited:
            limited = CounterMetricFamily(
                "tokentrail_limited_requests", "Requests that a limit refused", labels=["of", "limit"]
            )
            for (of, limit), count in sorted(self.limited.items()):
                limited.add_metric([of, limit], count)
            yield limited

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
        yield from process_families()

        for further in self.more:
            yield from further()

        yield histogram("time_to_first_token_seconds", "Received → first token", lambda one: one.first_token)
        yield histogram(
            "inter_token_latency_seconds", "Token → next token of a sequence", lambda one: one.inter_token
        )
        yield histogram(
            "request_time_per_output_token_seconds",
            "First token → last, by the tokens between, per request",
            lambda one: one.per_output_token,
        )
        yield histogram("e2e_request_latency_seconds", "Received → finished", lambda one: one.latency)
        yield histogram(
            "request_queue_time_seconds",
            "Received → first step that had a part of it",
            lambda one: one.queue_time,
        )
        yield histogram(
            "request_prompt_tokens", "Prompt tokens per request", lambda one: one.request_prompt_tokens
        )
        yield histogram(
            "request_generation_tokens",
            "Generated tokens per request",
            lambda one: one.request_generation_tokens,
        )

    @staticmethod
    def _replicas(models: Sequence[Metrics]) -> Iterator[Metric]:
        """Of models that have several engines."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        several = [one for one in models if one.replicas]
        if not several:
            return
        labels = ["model_name", "replica"]
        up = GaugeMetricFamily("tokentrail_replica_up", "1 while this engine process runs", labels=labels)
        restarts = CounterMetricFamily(
            "tokentrail_replica_restarts", "Times that this engine process was replaced", labels=labels
        )
        running = GaugeMetricFamily(
            "tokentrail_replica_requests_running", "Sequences in its running batch", labels=labels
        )
        waiting = GaugeMetricFamily(
            "tokentrail_replica_requests_waiting", "Sequences that wait in it", labels=labels
        )
        moved = CounterMetricFamily(
            "tokentrail_replica_moves",
            "Sequences that went on on another replica when theirs had died",
            labels=["model_name"],
        )
        for one in several:
            moved.add_metric([one.model_name], one.moved)
            for number, (alive, times, stats) in enumerate(one.replicas):
                label = [one.model_name, str(number)]
                up.add_metric(label, float(alive))
                restarts.add_metric(label, times)
                running.add_metric(label, stats.running)
                waiting.add_metric(label, stats.waiting)
        yield from (up, restarts, running, waiting, moved)


_ENGINE_FACTS = (
    "architecture",
    "fingerprint",
    "isa",
    "threads",
    "max_model_len",
    "block_size",
    "num_blocks",
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
