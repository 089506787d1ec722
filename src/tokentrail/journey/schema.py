"""The JSON shape of a journey.

Times named `…_at` are wall-clock seconds (`time.time()`); the others are durations in seconds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class StageTimes(msgspec.Struct, kw_only=True):
    """Seconds per stage; None: the stage was not reached. `detokenize` and `send` overlap `decode`."""

    template: float | None = None
    """Messages → prompt text."""
    tokenize: float | None = None
    """Prompt text → token ids."""
    queue: float | None = None
    """Handed to the engine → start of the first step that had a part of it."""
    prefill: float | None = None
    """Start of that step → end of the step that brought the first token."""
    decode: float | None = None
    """First token → last token."""
    detokenize: float = 0.0
    """Token ids → text, stop strings included, summed over the answer."""
    send: float = 0.0
    """Writing to the client, waiting for a slow one included, summed over the answer."""
    first_token: float | None = None
    """Received → first token."""
    total: float | None = None
    """Received → finished."""


class GatewayStageView(msgspec.Struct, kw_only=True):
    """What a part of the gateway did: a filter, a judge, the cache, one attempt at a target."""

    name: str
    """filtered (the prompt), filtered out (the answer, beside the steps), judged, looked up (in the cache of
    answers), attempt."""
    start_at: float
    seconds: float
    busy_seconds: float | None = None
    """Of a stage that goes on beside others: how much of the time it took itself."""
    facts: dict[str, str | int | float | bool] = {}
    """`rules`: names of those that found something; `target`, `error`: of an attempt."""


class EventView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing that happened, in order of time."""

    event: str
    """received, templated, queued, scheduled, first_token, preempted, resumed, finished."""
    at: float
    sequence: int | None = None
    """Which sequence, when it concerns one."""
    tokens: int | None = None
    """templated: prompt tokens; scheduled: tokens in the first chunk; finished: generated tokens."""
    cached_tokens: int | None = None
    reason: str | None = None
    """finished: stop, length, abort or error."""


class StepView(msgspec.Struct, kw_only=True):
    """One engine step in which the sequence had a part."""

    step: int
    """The engine's step number; it begins anew when the engine process is restarted."""
    engine: int
    """How many times the engine had been restarted before."""
    replica: int
    """Which of the model's engines it was, where it has several; the first one is 0."""
    kind: str
    """prefill (a chunk of the prompt), decode (one token, and drafted ones that were right) or recompute (after a
    preemption or restart).
    """
    start_at: float
    seconds: float
    schedule_seconds: float
    forward_seconds: float
    sample_seconds: float
    tokens: int
    """Tokens of this sequence computed in the step, drafted ones included."""
    position: int
    """Position of the first of them."""
    cached_tokens: int
    """Tokens taken from the prefix cache in this step."""
    blocks: int
    """KV blocks the sequence held afterwards."""
    batch_sequences: int
    batch_tokens: int
    blocks_used: int
    """KV blocks in use by all sequences afterwards."""
    drafted_tokens: int = 0
    """Of `tokens`: those that had been drafted (speculative decoding), to be verified by this step."""
    accepted_tokens: int = 0
    """Of the drafted ones: those that were right. The step brought one token more than these."""
    drafting_seconds: float = 0.0
    """Of `schedule_seconds`: drafting, for all sequences of the step."""


class AlternativeView(msgspec.Struct, kw_only=True):
    id: int
    text: str
    logprob: float


class TokenView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One generated token. `id`, `text` and `top` are there only if the server keeps texts in trails."""

    at: float
    step: int
    logprob: float
    id: int | None = None
    text: str | None = None
    top: list[AlternativeView] | None = None


class PromptTokenView(msgspec.Struct, kw_only=True):
    id: int
    text: str


class CompanyView(msgspec.Struct, kw_only=True):
    """Another sequence of the same tenant that shared steps."""

    journey: str
    sequence: int
    steps: list[Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)]]
    """Which: first and last index into `steps` of each stretch."""


class SequenceView(msgspec.Struct, kw_only=True):
    """One choice of one prompt."""

    index: int
    """Index among the response's choices."""
    prompt_tokens: int
    cached_tokens: int | None
    """Prompt tokens found in the prefix cache when it was first admitted."""
    completion_tokens: int
    finish_reason: str | None
    preempted_at: list[float]
    resumed_at: list[float]
    """When it was handed to a fresh engine after the old one had died."""
    steps: list[StepView]
    tokens: list[TokenView]
    company: list[CompanyView] = []
    """Who shared those steps, as far as it is the tenant's own; `batch_sequences` counts all."""
    text: str | None = None
    prompt: str | None = None
    prompt_pieces: list[PromptTokenView] | None = None
    """The prompt's tokens; there, as `prompt` and `text`, if the server keeps texts in trails."""


class JourneySummary(msgspec.Struct, kw_only=True):
    """A journey without its steps and tokens, as `GET /v1/journeys` lists it."""

    id: str
    object: str = "journey"
    request_id: str
    """The `x-request-id` the client sent, or the id."""
    endpoint: str
    model: str
    status: str
    """live or finished."""
    served_by: str
    """engine; cache: the same question had been answered before; or the name of a remote model."""
    route: str = ""
    """The route that was asked for, with its scenario; empty: a model by its own name."""
    target: str = ""
    """The model that answered, where the server has several."""
    degraded: bool = False
    """Not one of the route's own targets: a fallback, or an answer that had been kept."""
    attempts: int = 1
    """Targets that were asked."""
    outcome: str | None
    """stop, length, abort, rejected (the queue was full) or error; None while live. The worst of
    its sequences.
    """
    received_at: float
    first_token_at: float | None
    finished_at: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int = 0
    """Tokens that were drafted and verified (speculative decoding); 0 without it."""
    accepted_tokens: int = 0
    """Drafted tokens that were right."""
    num_sequences: int
    preemptions: int
    resumptions: int
    seed: int | None
    system_fingerprint: str | None
    stages: StageTimes

    @property
    def tokens_per_second(self) -> float | None:
        """Of the answer: tokens after each choice's first, by the time from the first token to the last."""
        tokens = self.completion_tokens - self.num_sequences
        return tokens / self.stages.decode if self.stages.decode and tokens > 0 else None


class JourneyView(JourneySummary, kw_only=True):
    """The whole journey, as `GET /v1/journeys/{id}` returns it."""

    events: list[EventView]
    gateway: list[GatewayStageView] = []
    """Of a server with a deployment file; in order of their beginnings."""
    sequences: list[SequenceView]
    texts: list[str] | None = None
    """By choice, of an answer of a remote upstream, if the server keeps texts in trails."""


class JourneyList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[JourneySummary]
    """Newest first."""
    has_more: bool
