"""Questions → answers that are kept, and the backend that looks there first."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import msgspec

from tokentrail.answer import Answer, AnswerRequest, Backend
from tokentrail.gateway.caching.answers import CachedAnswer, Kept, RecordingAnswer, encode
from tokentrail.gateway.caching.stores import Store
from tokentrail.gateway.config import CacheSettings
from tokentrail.gateway.forwarding import ForwardingBackend
from tokentrail.journey import JourneyStore, Stage
from tokentrail.observability import Metrics


def reusable(request: AnswerRequest) -> bool:
    """Whether the answer is the same each time."""
    if request.reveal or request.begun:
        return False
    if request.lines is not None and request.lines.seconds is not None:
        return False
    sampling = request.sampling
    greedy = sampling.temperature == 0 and "temperature" not in request.unset
    return greedy or sampling.seed is not None


def key_of(request: AnswerRequest, fingerprint: str = "") -> bytes:
    """What makes two questions the same: a digest, behind one of the tenant. `fingerprint`: of the model."""
    asked = (
        request.tenant,
        request.salt,
        request.model,
        fingerprint,
        [(type(prompt).__name__, prompt) for prompt in request.prompts],
        request.sampling,
        sorted(request.unset),
        request.default_max_tokens,
        request.chat,
        request.echo,
        request.lines,
        request.truncate_prompt_tokens,
    )
    tenant = hashlib.sha256(request.tenant.encode()).hexdigest()[:16]
    return f"{tenant}:{hashlib.sha256(encode(asked)).hexdigest()}".encode()


class ResponseCache:
    """Answers by their questions."""

    def __init__(
        self,
        settings: CacheSettings,
        store: Store,
        journeys: JourneyStore,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: wall clock, which all gateways that share a store have in common."""
        self.settings = settings
        self.store = store
        self._journeys = journeys
        self._metrics = metrics
        self._clock = clock
        self._decode = msgspec.msgpack.Decoder(Kept).decode

    async def fresh(self, request: AnswerRequest, key: bytes) -> Answer | None:
        """The answer to the same question, if it is not older than the cache's lifetime."""
        start = self._clock()
        kept = await self._get(key)
        now = self._clock()
        hit = kept is not None and kept.reusable and now - kept.at < self.settings.lifetime_s
        stage = Stage(name="looked up", start=start, end=now, facts={"hit": hit})
        request.handling.stages.append(stage)
        self._metrics.response_cache["hit" if hit else "miss"] += 1
        if kept is None or not hit:
            return None
        return CachedAnswer(kept, request, self._journeys, self._metrics, age=now - kept.at)

    async def stale(self, request: AnswerRequest) -> Answer | None:
        """When nobody can answer: what was answered to the same question within `outage_s`, or None. Marks the
        request as degraded.
        """
        key = request.handling.kept_as
        if not self.settings.outage_s or not key:
            return None
        kept = await self._get(key)
        now = self._clock()
        if kept is None or now - kept.at >= max(self.settings.outage_s, self.settings.lifetime_s):
            return None
        self._metrics.response_cache["stale"] += 1
        request.handling.target, request.handling.degraded = "cache", True
        return CachedAnswer(kept, request, self._journeys, self._metrics, age=now - kept.at)

    def put(self, key: bytes, answer: Kept) -> None:
        """Keep, and say when that was."""
        answer.at = self._clock()
        longest = max(self.settings.outage_s, self.settings.lifetime_s if answer.reusable else 0.0)
        self.store.put(key, encode(answer), longest)

    async def _get(self, key: bytes) -> Kept | None:
        data = await self.store.get(key)
        if data is None:
            return None
        try:
            return self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):  # another version's, or damaged
            return None


class CachingBackend(ForwardingBackend):
    """See `answer.backend.Backend`."""

    def __init__(self, inner: Backend, cache: ResponseCache) -> None:
        super().__init__(inner)
        self.cache = cache
        self._fingerprints: dict[str, str] = {}

    async def open(self, request: AnswerRequest) -> Answer:
        again = reusable(request)
        if not again and not self.cache.settings.outage_s:
            return await self.inner.open(request)
        # Before anybody fills in what the request left to others.
        key = request.handling.kept_as = key_of(request, self._fingerprint(request.model))
        if again and (kept := await self.cache.fresh(request, key)) is not None:
            return kept
        answer = await self.inner.open(request)
        return RecordingAnswer(answer, request, again, lambda kept: self.cache.put(key, kept))

    def models_changed(self) -> None:
        """A name may stand for another model now."""
        self._fingerprints.clear()

    def _fingerprint(self, model: str) -> str:
        """Of the model that a name stands for: answers in Redis outlive it. Unknown of remote models."""
        found = self._fingerprints.get(model)
        if found is None:
            try:
                found = self.inner.details(model).fingerprint
            except Exception:  # who cannot say has its reasons, and the request will be told them
                found = ""
            self._fingerprints[model] = found
        return found
