"""From a request's arrival to what is told about it."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tokentrail.answer import Identity
from tokentrail.gateway.observing.observed import Observed
from tokentrail.gateway.observing.spans import trace_of
from tokentrail.gateway.observing.texts import prompt_text
from tokentrail.journey import JourneyStore
from tokentrail.observability import AccessLog, Traffic
from tokentrail.observability.tracing import Sampler, SpanExporter, traceparent_of
from tokentrail.observability.traffic import Ended
from tokentrail.protocol import TokentrailError

CLIENT_GONE = 499


class Line(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A line of the access log. Times in seconds."""

    time: str
    """When the request came: UTC, as ISO 8601 has it."""
    request_id: str
    id: str = ""
    """Of the answer, and its trail."""
    method: str
    path: str
    """The route's pattern: what stands in its place may be anything."""
    status: int
    duration_s: float
    tenant: str = ""
    key: str = ""
    """Its id."""
    model: str = ""
    """As it was asked for."""
    route: str = ""
    target: str = ""
    degraded: bool = False
    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    first_token_s: float | None = None
    finish: list[str] = []
    """How each choice ended; `cut` of one that did not come to its end."""
    error: str = ""
    """Its code or type, never its message."""
    trace_id: str = ""
    prompt: str | None = None
    """With `log_content` …"""
    answer: list[str] | None = None
    """… of each choice."""


class TurnedAway(NamedTuple):
    """A question that no model was asked, since something was wrong with it."""

    identity: Identity
    endpoint: str
    request_id: str
    received: float
    status: int
    error: str
    """Its code or type."""


class Observer:
    """Of all requests over HTTP."""

    def __init__(
        self,
        journeys: JourneyStore,
        traffic: Traffic,
        log: AccessLog | None,
        exporter: SpanExporter | None,
        *,
        sampler: Sampler | None = None,
        address: tuple[str, int] | None = None,
        content: bool = False,
        turned_away: Callable[[TurnedAway], None] | None = None,
    ) -> None:
        """`address`: the server's host and port, for traces; `content`: prompts and answers are told; `turned_away`:
        who writes down questions that no model was asked.
        """
        self._turned_away = turned_away
        self.content = content
        self.journeys = journeys
        self.traffic = traffic
        self.log = log
        self.exporter = exporter
        self._sampler = sampler or Sampler(1.0)
        self._address = address

    def begin(self, received: float, traceparent: bytes | None) -> Observed:
        """A request came, perhaps with a caller's trace context."""
        observed = Observed(started=received)
        if self.exporter is not None:
            observed.context = self._sampler.begin(traceparent)
            observed.trace = observed.context.traceparent
        else:
            observed.trace = traceparent_of(traceparent)
        return observed

    def end(
        self,
        observed: Observed,
        *,
        method: str,
        route: str,
        status: int,
        request_id: str,
        identity: Identity,
        problem: Exception | None,
        question: str | None = None,
    ) -> None:
        """Its response is over. `status`: 0 if none was begun; `problem`: what it was refused with; `question`: where a
        model was to be asked by somebody who is let in.
        """
        now = time.time()
        error = observed.error or problem
        status = status or CLIENT_GONE
        told = "" if error is None else error_code(error)
        request = observed.request
        if request is not None:
            self.traffic.add(self._ended(observed, identity, status, error, now))
        elif question is not None and error is not None and self._turned_away is not None:
            self._turned_away(TurnedAway(identity, question, request_id, observed.started, status, told))
        if self.log is not None:
            self.log.put(self._line(observed, method, route, status, request_id, identity, told, now))
        context = observed.context
        if self.exporter is not None and context is not None and context.sampled:
            facts: dict[str, Any] = {
                "http.request.method": method,
                "http.route": route,
                "http.response.status_code": status,
                "tokentrail.request_id": request_id,
                "tokentrail.tenant": identity.tenant or None,
                "tokentrail.key": identity.key or None,
                "error.type": told or None,
            }
            if self._address is not None:
                facts["server.address"], facts["server.port"] = self._address
            failed = told if status >= 500 or (told and status == 200) else None
            name = f"{method} {route}"
            self.exporter.put(trace_of(observed, context, name, facts, now, failed, self.content))
        observed.request = observed.journey = observed.error = None

    def _ended(
        self, observed: Observed, identity: Identity, status: int, error: BaseException | None, now: float
    ) -> Ended:
        assert observed.request is not None
        usage, timing = observed.usage, observed.timing
        first = per_token = None
        if timing is not None and timing.first_token is not None:
            first = timing.first_token - observed.started
            between = 0 if usage is None else usage.completion_tokens - len(observed.finish_reasons)
            if timing.last_token is not None and between > 0:
                spent = (timing.last_token - timing.first_token) * len(observed.finish_reasons)
                per_token = spent / between
        model = observed.request.model
        return Ended(
            observed.route or model,
            observed.target or model,
            identity.tenant,
            _outcome(observed, status, error),
            now - observed.started,
            first,
            per_token,
            0 if usage is None else usage.prompt_tokens,
            0 if usage is None else usage.cached_tokens,
            0 if usage is None else usage.completion_tokens,
        )

    def _line(
        self,
        observed: Observed,
        method: str,
        route: str,
        status: int,
        request_id: str,
        identity: Identity,
        error: str,
        now: float,
    ) -> Line:
        request, usage, timing = observed.request, observed.usage, observed.timing
        line = Line(
            time=iso(observed.started),
            request_id=request_id,
            method=method,
            path=route,
            status=status,
            duration_s=round(now - observed.started, 6),
            tenant=identity.tenant,
            key=identity.key,
            route=observed.route,
            target=observed.target,
            degraded=observed.degraded,
            attempts=observed.attempts,
            finish=[reason or "cut" for reason in observed.finish_reasons],
            error=error,
        )
        if request is not None:
            line.id, line.model = request.id, request.model
        if usage is not None:
            line.prompt_tokens, line.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            line.completion_tokens, line.reasoning_tokens = usage.completion_tokens, usage.reasoning_tokens
        if timing is not None and timing.first_token is not None:
            line.first_token_s = round(timing.first_token - observed.started, 6)
        if observed.context is not None:
            line.trace_id = f"{observed.context.trace_id:032x}"
        if self.content and request is not None:
            line.prompt = prompt_text(request.prompts)
            if observed.texts is not None:
                line.answer = ["".join(parts) for parts in observed.texts]
        return line


def _outcome(observed: Observed, status: int, error: BaseException | None) -> str:
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)) or status == CLIENT_GONE:
        return "aborted"
    if isinstance(error, TokentrailError):
        if error.status == 429:
            return "limited"
        return "refused" if error.status < 500 else "failed"
    if error is not None:
        return "failed"
    return "ok" if observed.whole else "aborted"


def error_code(error: BaseException) -> str:
    """What may be told of an error: its message may quote what the user wrote."""
    if isinstance(error, TokentrailError):
        return error.code or error.type
    return "aborted" if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else "internal_error"


def iso(seconds: float) -> str:
    when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
