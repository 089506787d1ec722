"""A request's spans: itself, with OpenTelemetry's attributes for generative AI, and a span for each stage of its way.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

from typing import Any

from tokentrail.answer import AnswerRequest
from tokentrail.gateway.observing.observed import Observed
from tokentrail.gateway.observing.texts import input_messages, output_messages
from tokentrail.journey import Journey
from tokentrail.observability.tracing import Span, Trace, TraceContext


def trace_of(
    observed: Observed,
    context: TraceContext,
    name: str,
    facts: dict[str, Any],
    end: float,
    failed: str | None,
    content: bool,
) -> Trace:
    """`name`, `facts`: of the request over HTTP; `failed`: with which error the server failed."""
    request = observed.request
    if request is not None:
        operation, asked = asked_of(observed)
        name = f"{operation} {request.model}"
        facts = {**facts, **asked}
        if content:
            facts["gen_ai.input.messages"] = input_messages(request.prompts)
            if observed.texts is not None:
                facts["gen_ai.output.messages"] = output_messages(observed.texts, observed.finish_reasons)
    return Trace(context, Span(name, observed.started, end, facts), stages_of(observed, end), failed)


def asked_of(observed: Observed) -> tuple[str, dict[str, Any]]:
    """The operation, and attributes of what was asked and answered: no content."""
    request, usage, timing = observed.request, observed.usage, observed.timing
    assert request is not None
    if not isinstance(request, AnswerRequest):
        operation = "embeddings"
    elif request.chat is not None:
        operation = "chat"
    else:
        operation = "text_completion"
    facts: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "tokentrail",
        "gen_ai.request.model": request.model,
        "gen_ai.response.id": request.id,
        "gen_ai.response.model": observed.response_model or None,
        "gen_ai.openai.response.system_fingerprint": observed.fingerprint or None,
        "tokentrail.endpoint": request.endpoint,
        "tokentrail.route": observed.route or None,
        "tokentrail.target": observed.target or None,
        "tokentrail.degraded": observed.degraded or None,
        "tokentrail.attempts": observed.attempts or None,
    }
    if isinstance(request, AnswerRequest):
        sampling = request.sampling
        facts["gen_ai.request.choice.count"] = sampling.n if sampling.n != 1 else None
        facts["gen_ai.request.max_tokens"] = sampling.max_tokens
        facts["gen_ai.request.seed"] = sampling.seed
        facts["gen_ai.request.temperature"] = sampling.temperature
        facts["gen_ai.request.top_p"] = sampling.top_p
        facts["gen_ai.request.top_k"] = float(sampling.top_k) if sampling.top_k else None
        facts["gen_ai.request.frequency_penalty"] = sampling.frequency_penalty or None
        facts["gen_ai.request.presence_penalty"] = sampling.presence_penalty or None
        facts["gen_ai.response.finish_reasons"] = [reason or "cut" for reason in observed.finish_reasons]
    if usage is not None:
        facts["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        facts["gen_ai.usage.output_tokens"] = usage.completion_tokens
        facts["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if timing is not None and timing.first_token is not None:
        facts["tokentrail.first_token_s"] = timing.first_token - observed.started
    return operation, facts


def stages_of(observed: Observed, end: float) -> list[Span]:
    """In order of their beginnings."""
    stages: list[Span] = []
    if observed.opened is not None:
        stages.append(Span("received", observed.started, observed.opened, {}))
    for stage in observed.stages:
        facts = stage.facts if stage.busy is None else {**stage.facts, "tokentrail.busy_s": stage.busy}
        stages.append(Span(stage.name, stage.start, stage.end, facts))
    if observed.journey is not None:
        stages += _engine(observed.journey, end)
    return sorted(stages, key=lambda span: span.start)


def _engine(journey: Journey, end: float) -> list[Span]:
    """What the trail knows of a local engine's part."""
    stages: list[Span] = []
    times = journey.stages()
    if journey.templated is not None:
        at = journey.templated
        tokenized = at - (times.tokenize or 0.0)
        if times.template is not None:
            stages.append(Span("templated", tokenized - times.template, tokenized, {}))
        stages.append(Span("tokenized", tokenized, at, {"tokentrail.tokens": journey.prompt_tokens}))
    if journey.queued is None:
        return stages
    at = journey.queued
    if times.queue is None:
        return [*stages, Span("queued", at, journey.finished or end, {})]
    stages.append(Span("queued", at, at + times.queue, {}))
    at += times.queue
    if times.prefill is None:
        return [*stages, Span("prefill", at, journey.finished or end, {})]
    cached = sum(sequence.cached_tokens or 0 for sequence in journey.sequences)
    stages.append(Span("prefill", at, at + times.prefill, {"tokentrail.cached_tokens": cached}))
    at += times.prefill
    if times.decode is not None:
        tokens = sum(len(sequence.token_steps) for sequence in journey.sequences)
        facts = {"tokentrail.tokens": tokens, "tokentrail.detokenize_s": times.detokenize}
        stages.append(Span("decode", at, at + times.decode, facts))
    stages.append(Span("sent", at, end, {"tokentrail.busy_s": times.send}))
    return stages
