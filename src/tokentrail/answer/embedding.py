"""Texts → vectors: what is asked, what is answered, and one request's way from its check to its end.

`EmbeddingJob` is synchronous and without an engine: `LocalBackend` and `LLM` each drive it their own way.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Mapping, Sequence

import msgspec

from tokentrail.answer.admission import Desk, check_priority
from tokentrail.answer.identity import Handling, Identity
from tokentrail.answer.prompts import Prepared, prepare
from tokentrail.answer.types import Prompt, Usage
from tokentrail.journey import Stage
from tokentrail.protocol import (
    ContextLengthExceeded,
    Delta,
    EngineInfo,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    Pooling,
    SamplingParams,
    TokentrailError,
)


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """One request: each prompt becomes a vector, as if it had been asked for alone."""

    id: str
    prompts: list[Prompt]
    model: str
    endpoint: str
    field: str = "input"
    """What the request calls its prompts, for errors."""
    pooling: str | None = None
    """`last`, `mean` or `cls`; None: what the checkpoint or the server's settings say."""
    dimensions: int | None = None
    normalize: bool = True
    add_special_tokens: bool = True
    truncate_tokens: int | None = None
    """Keep so many of a prompt's last tokens; -1: as many as the context holds. None: refuse what is longer."""
    request_id: str | None = None
    identity: Identity = Identity()
    handling: Handling = msgspec.field(default_factory=Handling)
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    user: str = ""
    priority: int = 0
    salt: str = ""
    received: float | None = None
    """Wall clock; None: now."""

    @property
    def tenant(self) -> str:
        return self.identity.tenant

    @property
    def stages(self) -> Sequence[Stage]:
        return self.handling.stages

    @property
    def trace(self) -> str | None:
        return self.handling.trace


class Embeddings(msgspec.Struct, kw_only=True):
    """The vectors, in the order of the prompts."""

    id: str
    model: str
    created: int
    vectors: list[bytes]
    """Little-endian float32."""
    usage: Usage
    headers: dict[str, str] = {}
    """What clients are told beside them."""


def as_floats(vector: bytes) -> list[float]:
    """Little-endian float32 as numbers."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def prepare_embedding(desk: Desk, request: EmbeddingRequest, info: EngineInfo) -> Prepared:
    """Prompts to tokens, cut to what is allowed. Safe in another thread. Raises `InvalidRequest`."""
    kept, context = request.truncate_tokens, info.max_model_len
    if kept is not None and not (kept == -1 or 1 <= kept <= context):
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1 or from 1 to {context}, which the context holds, not {kept}.",
            param="truncate_prompt_tokens",
        )
    if kept == -1:
        kept = context
    parts = desk.parts
    prepared = prepare(
        request.prompts,
        parts.tokenizer,
        parts.template,
        context if kept is None else sys.maxsize,
        add_special_tokens=request.add_special_tokens,
        field=request.field,
    )
    if kept is not None:
        prepared.token_ids = [ids[-kept:] for ids in prepared.token_ids]
    for index, ids in enumerate(prepared.token_ids):
        which = request.field if len(request.prompts) == 1 else f"{request.field}[{index}]"
        if not ids:
            raise InvalidRequest(f"{which} is empty: it has no tokens.", param=request.field)
        if len(ids) > context:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context} tokens. However, {which} has {len(ids)} tokens. "
                "Please shorten it, or set truncate_prompt_tokens.",
                param=request.field,
            )
    return prepared


class EmbeddingJob:
    """An admitted request."""

    def __init__(self, desk: Desk, request: EmbeddingRequest, prepared: Prepared, info: EngineInfo) -> None:
        """Raises `InvalidRequest` for dimensions that there are not."""
        pooling = Pooling(
            kind=request.pooling or desk.parts.pooling,
            dimensions=request.dimensions,
            normalize=request.normalize,
        )
        pooling.validate(info.hidden_size)
        check_priority(request.priority)
        self._request = request
        self._metrics = desk.metrics
        self._ended = False
        self.usage = Usage(prompt_tokens=sum(map(len, prepared.token_ids)))
        adapter = request.model if request.model in {one.name for one in info.adapters} else ""
        self._journey = desk.begin_journey(request, prepared)
        self._journey.fingerprint = info.fingerprint_with(adapter)
        self.sequences = [
            GenerateRequest(
                id=f"{request.id}-{index}",
                group=request.id,
                prompt=ids,
                sampling=SamplingParams(temperature=0.0, max_tokens=1, seed=0),
                priority=request.priority,
                tenant=request.tenant,
                weight=request.identity.weight,
                salt=request.salt,
                adapter=adapter,
                trace=request.trace,
                arrival=self._journey.received,
                pooling=pooling,
            )
            for index, ids in enumerate(prepared.token_ids)
        ]
        self._trails = [
            self._journey.add_sequence(sequence.id, prompt_tokens=len(sequence.prompt), prompt=text)
            for sequence, text in zip(self.sequences, prepared.texts, strict=True)
        ]
        self._vectors: list[bytes | None] = [None] * len(self.sequences)

    def take(self, index: int, delta: Delta) -> bool:
        """What the engine says of prompt number `index`; returns whether that was all. Raises `TokentrailError` if the
        engine gave it up.
        """
        finish = delta.finish
        if finish is None:
            return False
        if finish.embedding is None or finish.reason is not FinishReason.STOP:
            raise TokentrailError(finish.error or "The engine gave the request up.", code=finish.reason.value)
        self._vectors[index] = finish.embedding
        self.usage.cached_tokens += delta.cached_tokens or 0
        self._journey.sequence_done(self._trails[index], finish.reason.value, 0)
        return True

    def result(self) -> Embeddings:
        vectors = [vector for vector in self._vectors if vector is not None]
        assert len(vectors) == len(self._vectors)
        request = self._request
        return Embeddings(
            id=request.id,
            model=request.model,
            created=int(self._journey.received),
            vectors=vectors,
            usage=self.usage,
        )

    def end(self, outcome: str) -> None:
        """The request is over: stop, abort, rejected or error. Only the first call counts."""
        if self._ended:
            return
        self._ended = True
        self._journey.end(outcome)
        metrics = self._metrics
        metrics.requests[outcome] += 1
        if outcome != "rejected":
            metrics.latency.observe(time.time() - self._journey.received)
            metrics.request_prompt_tokens.observe(self.usage.prompt_tokens)
            queue = self._journey.queue_seconds()
            if queue is not None:
                metrics.queue_time.observe(queue)


def window(info: EngineInfo, count: int) -> int:
    """How many of a request's `count` sequences the engine is given at a time: enough to fill its steps, and few enough
    that a long list leaves room in the queue for others.
    """
    return min(count, 2 * info.max_num_seqs)


def check_inputs(count: int, most: int, field: str) -> None:
    """Refuse an empty list, and one of more than `most`."""
    if not count:
        raise InvalidRequest(f"{field} must not be an empty list.", param=field)
    if count > most:
        raise InvalidRequest(
            f"{field} has {count} entries; a request may have {most}. Send several requests.", param=field
        )
