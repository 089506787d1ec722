"""Answers that are known already: the same question, asked again, is answered from memory.

Only what is sure to be the same is kept: questions with a seed, or without temperature. (The engine's promise is that
the same request gives the same bytes, whatever else runs.) A content store: it holds answers' texts, and is off unless
a deployment file turns it on. No tenant gets another's.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from tokentrail.answer import Answer, AnswerRequest, Backend, Chunk, Timing, Usage
from tokentrail.gateway.config import CacheSettings
from tokentrail.gateway.forwarding import ForwardingAnswer, ForwardingBackend
from tokentrail.journey import Journey, JourneyStore
from tokentrail.observability import Metrics
from tokentrail.protocol import SamplingParams

SERVED_BY = "x-tokentrail-served-by"
"""The header that names who answered, where that was not the engine."""

_encode = msgspec.msgpack.Encoder().encode


class _Kept(msgspec.Struct):
    """A whole answer."""

    seed: int
    fingerprint: str
    prompt_token_ids: list[list[int]]
    sampling: SamplingParams
    usage: Usage
    num_choices: int
    chunks: list[Chunk]
    headers: dict[str, str]


class ResponseCache:
    """Answers by the digest of their questions, the least recently asked leaving first."""

    def __init__(self, settings: CacheSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._decode = msgspec.msgpack.Decoder(_Kept).decode
        self.size = 0
        """Bytes."""

    def get(self, key: bytes) -> _Kept | None:
        found = self._kept.get(key)
        if found is None:
            return None
        if found[0] <= self._clock():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return self._decode(found[1])

    def put(self, key: bytes, answer: _Kept) -> None:
        data = _encode(answer)
        limit = self.settings.memory_mib * 2**20
        if key in self._kept:
            self._drop(key)
        # One answer may not drive all others out.
        if len(data) > limit // 4:
            return
        self._kept[key] = self._clock() + self.settings.lifetime_s, data
        self.size += len(data)
        while self.size > limit:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        self.size -= len(self._kept.pop(key)[1])


def key_of(request: AnswerRequest) -> bytes | None:
    """What makes two questions the same; None: the answer might differ the next time."""
    sampling = request.sampling
    greedy = sampling.temperature == 0 and "temperature" not in request.unset
    if sampling.seed is None and not greedy:
        return None
    asked = (
        request.tenant,
        request.salt,
        request.model,
        [(type(prompt).__name__, prompt) for prompt in request.prompts],
        sampling,
        sorted(request.unset),
        request.default_max_tokens,
        request.chat,
        request.echo,
        request.truncate_prompt_tokens,
    )
    return hashlib.sha256(_encode(asked)).digest()


class CachingBackend(ForwardingBackend):
    """See `answer.backend.Backend`."""

    def __init__(
        self, inner: Backend, cache: ResponseCache, journeys: JourneyStore, metrics: Metrics
    ) -> None:
        super().__init__(inner)
        self.cache = cache
        self._journeys = journeys
        self._metrics = metrics

    async def open(self, request: AnswerRequest) -> Answer:
        key = key_of(request)
        if key is None:
            return await self.inner.open(request)
        kept = self.cache.get(key)
        self._metrics.response_cache[kept is not None] += 1
        if kept is not None:
            return CachedAnswer(kept, request, self._journeys, self._metrics)
        return RecordingAnswer(await self.inner.open(request), lambda answer: self.cache.put(key, answer))


class CachedAnswer:
    """See `answer.backend.Answer`. A stream comes in the pieces that it came in the first time, all at once."""

    def __init__(self, kept: _Kept, request: AnswerRequest, journeys: JourneyStore, metrics: Metrics) -> None:
        now = time.time()
        received = now if request.received is None else request.received
        self.id, self.model, self.created = request.id, request.model, int(received)
        self.seed, self.fingerprint, self.sampling = kept.seed, kept.fingerprint, kept.sampling
        self.prompt_token_ids, self.num_choices = kept.prompt_token_ids, kept.num_choices
        self.usage = msgspec.structs.replace(kept.usage, cached_tokens=kept.usage.prompt_tokens)
        self.timing = Timing(received, now, now)
        self.headers = {**kept.headers, SERVED_BY: "cache"}
        self._chunks = self._run(kept.chunks)
        self._metrics = metrics
        self._journey: Journey | None = journeys.begin(
            request.id,
            endpoint=request.endpoint,
            model=request.model,
            tenant=request.tenant,
            request_id=request.request_id,
            received=received,
        )
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

    def __init__(self, inner: Answer, keep: Callable[[_Kept], None]) -> None:
        super().__init__(inner)
        self._keep: Callable[[_Kept], None] | None = keep
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
        keep(
            _Kept(
                self.seed,
                self.fingerprint,
                self.prompt_token_ids,
                self.sampling,
                self.usage,
                self.num_choices,
                self._seen,
                dict(self.headers),
            )
        )
