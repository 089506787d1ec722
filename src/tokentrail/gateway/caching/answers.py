"""Answers that are kept, and answers while they are."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from tokentrail.answer import Answer, AnswerRequest, Chunk, Timing, Usage
from tokentrail.gateway.forwarding import ForwardingAnswer
from tokentrail.journey import Journey, JourneyStore
from tokentrail.observability import Metrics
from tokentrail.protocol import SamplingParams

SERVED_BY = "x-tokentrail-served-by"
"""The header that names who answered, where that was not the engine."""

encode = msgspec.msgpack.Encoder().encode


class Kept(msgspec.Struct, kw_only=True):
    """A whole answer."""

    at: float = 0.0
    """When it was kept; wall clock."""
    reusable: bool
    """It is the same each time."""
    seed: int
    fingerprint: str
    prompt_token_ids: list[list[int]]
    sampling: SamplingParams
    usage: Usage
    num_choices: int
    chunks: list[Chunk]
    headers: dict[str, str]


class CachedAnswer:
    """See `answer.backend.Answer`. A stream comes in the pieces that it came in the first time, all at once."""

    def __init__(
        self, kept: Kept, request: AnswerRequest, journeys: JourneyStore, metrics: Metrics, *, age: float
    ) -> None:
        """`age`: in seconds."""
        now = time.time()
        received = now if request.received is None else request.received
        self.id, self.model, self.created = request.id, request.model, int(received)
        self.seed, self.fingerprint, self.sampling = kept.seed, kept.fingerprint, kept.sampling
        self.prompt_token_ids, self.num_choices = kept.prompt_token_ids, kept.num_choices
        self.usage = msgspec.structs.replace(kept.usage, cached_tokens=kept.usage.prompt_tokens)
        self.timing = Timing(received, now, now)
        self.headers = {**kept.headers, SERVED_BY: "cache", "age": str(max(0, int(age)))}
        self._chunks = self._run(kept.chunks)
        self._metrics = metrics
        self._journey: Journey | None = journeys.begin_for(request)
        self._journey.served_by = "cache"
        self._journey.seed, self._journey.fingerprint = kept.seed, kept.fingerprint
        self._journey.prompt_tokens = kept.usage.prompt_tokens

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    async def _run(self, chunks: list[Chunk]) -> AsyncGenerator[list[Chunk], None]:
        if chunks:
            yield chunks
        self._end("length" if any(chunk.finish_reason == "length" for chunk in chunks) else "stop")

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        """All chunks come at once, by iteration."""

    async def aclose(self) -> None:
        await self._chunks.aclose()
        self._end("abort")

    def sent(self, seconds: float) -> None:
        if self._journey is not None:
            self._journey.send_seconds += seconds

    def _end(self, outcome: str) -> None:
        if self._journey is not None:
            self._journey.end(outcome)
            self._journey = None
            self._metrics.requests[outcome] += 1


class RecordingAnswer(ForwardingAnswer):
    """See `answer.backend.Answer`. Keeps the chunks that pass, and hands on the whole when all choices have ended."""

    def __init__(
        self, inner: Answer, request: AnswerRequest, reusable: bool, keep: Callable[[Kept], None]
    ) -> None:
        super().__init__(inner)
        self._request = request
        self._reusable = reusable
        self._keep: Callable[[Kept], None] | None = keep
        self._seen: list[Chunk] = []
        self._open = inner.num_choices

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._run()

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        async for chunks in self.inner:
            for chunk in chunks:
                self._record(chunk)
            yield chunks

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        def through(chunk: Chunk) -> bool:
            taken = take(chunk)
            if taken:
                self._record(chunk)  # those that are not taken come by iteration
            return taken

        self.inner.divert(through)

    def _record(self, chunk: Chunk) -> None:
        self._seen.append(chunk)
        self._open -= chunk.finish_reason is not None
        if self._open or self._keep is None:
            return
        keep, self._keep = self._keep, None
        if self._request.handling.degraded:
            return  # what stood in for the answer is not the answer
        kept = Kept(
            reusable=self._reusable,
            seed=self.seed,
            fingerprint=self.fingerprint,
            prompt_token_ids=self.prompt_token_ids,
            sampling=self.sampling,
            usage=self.usage,
            num_choices=self.num_choices,
            chunks=self._seen,
            # What clients are told of their limits is not of the answer.
            headers={k: v for k, v in self.headers.items() if not k.startswith("x-ratelimit-")},
        )
        keep(kept)
