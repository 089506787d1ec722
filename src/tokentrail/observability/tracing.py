"""Traces over OTLP, made after the fact: a request's spans are put together when it is over, and sent by a thread.

Trace context is W3C's (https://www.w3.org/TR/trace-context/): `00-<trace id>-<span id>-<flags>`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokentrail.observability.batching import Batches
from tokentrail.protocol import TokentrailError

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_TRACES = "/v1/traces"
_MOST_WAITING = 2048
"""Requests whose spans wait to be sent."""


class TraceContext(NamedTuple):
    """Where a request stands in a trace."""

    trace_id: int
    span_id: int
    """The request's own span's."""
    parent_id: int | None
    """The caller's span; None: the trace begins here."""
    sampled: bool

    @property
    def traceparent(self) -> str:
        """To be told to whoever is asked for the request's sake."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


class Sampler:
    """Which traces are kept: as the caller decided, otherwise a part of them, chosen by their ids so that others that
    see the trace choose alike.
    """

    def __init__(self, ratio: float) -> None:
        self._bound = round(ratio * (1 << 64))

    def begin(self, traceparent: bytes | None) -> TraceContext:
        """The context of a request that came with this header."""
        span_id = secrets.randbits(64) | 1
        match = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
        if match is not None:
            trace_id, parent_id = int(match[1], 16), int(match[2], 16)
            if trace_id and parent_id:
                return TraceContext(trace_id, span_id, parent_id, bool(int(match[3], 16) & 1))
        trace_id = secrets.randbits(128) | 1
        return TraceContext(trace_id, span_id, None, trace_id & ((1 << 64) - 1) < self._bound)


def sampling_ratio(given: float | None) -> float:
    """The part of traces that is kept: what was given, otherwise what OpenTelemetry's environment variables say
    (OTEL_SDK_DISABLED, OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG), otherwise all.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return 0.0
    if given is not None:
        return given
    sampler = os.environ.get("OTEL_TRACES_SAMPLER", "").removeprefix("parentbased_")
    if sampler == "always_off":
        return 0.0
    if sampler != "traceidratio":
        return 1.0
    argument = os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1")
    try:
        return min(1.0, max(0.0, float(argument)))
    except ValueError:
        raise TokentrailError(
            f"OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1, not {argument!r}."
        ) from None


def traceparent_of(header: bytes | None) -> str | None:
    """A caller's context to be handed on as it is; None: it is none."""
    return None if header is None or _TRACEPARENT.fullmatch(header) is None else header.decode()


class Span(NamedTuple):
    """Wall clock, in seconds."""

    name: str
    start: float
    end: float
    facts: Mapping[str, Any]


class Trace(NamedTuple):
    """A request's spans: itself and, below it, its stages."""

    context: TraceContext
    request: Span
    stages: Sequence[Span]
    error: str | None = None


class SpanExporter:
    """Sends traces to whatever speaks OTLP over HTTP, in batches. What is not said is as OpenTelemetry's environment
    variables have it (OTEL_EXPORTER_OTLP_ENDPOINT, …_HEADERS, …_TIMEOUT, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES).
    """

    def __init__(
        self, endpoint: str | None = None, headers: Mapping[str, str] | None = None, *, timeout: float = 10.0
    ) -> None:
        """`endpoint`: of the receiver, or of its traces (`…/v1/traces`). Raises a `TokentrailError` where the
        library is not installed.
        """
        if not all(map(_installed, ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"))):
            raise TokentrailError(
                "`tracing` needs OpenTelemetry, which is not installed: pip install 'tokentrail[gateway]'."
            )
        if endpoint is not None and not endpoint.rstrip("/").endswith(_TRACES):
            endpoint = endpoint.rstrip("/") + _TRACES
        self._endpoint = endpoint
        self._headers = dict(headers) if headers else None
        self._timeout = timeout
        self._library: Any = None
        self._exporter: Any = None
        self._resource: Any = None
        self._traces: Batches[Trace] = Batches(
            self._send, name="traces", capacity=_MOST_WAITING, batch=64, interval=1.0
        )

    @property
    def dropped(self) -> int:
        """Traces that were not sent: the receiver is slow or away."""
        return self._traces.dropped

    def put(self, trace: Trace) -> None:
        self._traces.put(trace)

    def flush(self) -> None:
        self._traces.flush()

    def close(self, timeout: float = 3.0) -> None:
        self._traces.close(timeout)
        if self._exporter is not None:
            self._exporter.shutdown()

    def _send(self, traces: list[Trace]) -> None:
        if self._exporter is None:
            self._start()
        spans = [span for trace in traces for span in self._spans(trace)]
        result = self._exporter.export(spans)
        if result.value:
            self._traces.dropped += len(traces)

    def _start(self) -> None:
        """In the thread: the libraries take a while to import."""
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        from tokentrail import __version__

        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "tokentrail"}
        self._resource = Resource.create({**named, "service.version": __version__})
        self._scope = InstrumentationScope("tokentrail", __version__)
        self._library = trace
        self._span = ReadableSpan
        self._exporter = OTLPSpanExporter(
            endpoint=self._endpoint, headers=self._headers, timeout=self._timeout
        )

    def _spans(self, made: Trace) -> list[Any]:
        api, context = self._library, made.context
        flags = api.TraceFlags(api.TraceFlags.SAMPLED)

        def at(span_id: int, remote: bool = False) -> Any:
            return api.SpanContext(context.trace_id, span_id, is_remote=remote, trace_flags=flags)

        own = at(context.span_id)
        parent = None if context.parent_id is None else at(context.parent_id, remote=True)
        failed = api.Status(api.StatusCode.ERROR, made.error) if made.error else api.Status()
        spans = [self._one(made.request, own, parent, api.SpanKind.SERVER, failed)]
        for stage in made.stages:
            kind = api.SpanKind.CLIENT if stage.facts.get("server.address") else api.SpanKind.INTERNAL
            spans.append(self._one(stage, at(secrets.randbits(64) | 1), own, kind, api.Status()))
        return spans

    def _one(self, span: Span, context: Any, parent: Any, kind: Any, status: Any) -> Any:
        return self._span(
            span.name,
            context,
            parent,
            self._resource,
            {name: value for name, value in span.facts.items() if value is not None},
            kind=kind,
            status=status,
            start_time=int(span.start * 1e9),
            end_time=int(max(span.start, span.end) * 1e9),
            instrumentation_scope=self._scope,
        )


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
