"""The outermost backend: sees what is asked, whether it is refused, and how the answer ends."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from tokentrail.answer import Answer, AnswerRequest, Backend, Chunk, EmbeddingRequest, Embeddings, Timing
from tokentrail.gateway.forwarding import ForwardingAnswer, ForwardingBackend
from tokentrail.gateway.observing.observed import Observed
from tokentrail.journey import JourneyStore


class ObservingBackend(ForwardingBackend):
    """See `answer.backend.Backend`. Requests that nobody observes pass."""

    def __init__(self, inner: Backend, journeys: JourneyStore, *, content: bool = False) -> None:
        super().__init__(inner)
        self._journeys = journeys
        self._content = content

    async def open(self, request: AnswerRequest) -> Answer:
        observed = request.handling
        if not isinstance(observed, Observed):
            return await self.inner.open(request)
        observed.request, observed.opened = request, time.time()
        try:
            answer = await self.inner.open(request)
        except BaseException as error:
            observed.error = error
            raise
        return ObservingAnswer(answer, observed, self._journeys, content=self._content)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        observed = request.handling
        if not isinstance(observed, Observed):
            return await self.inner.embed(request)
        observed.request, observed.opened = request, time.time()
        try:
            made = await self.inner.embed(request)
        except BaseException as error:
            observed.error = error
            raise
        finally:
            observed.journey = self._journeys.find(request.id, request.tenant)
        observed.response_model, observed.usage = made.model, made.usage
        observed.timing = Timing(observed.started)
        return made


class ObservingAnswer(ForwardingAnswer):
    """See `answer.backend.Answer`."""

    def __init__(
        self, inner: Answer, observed: Observed, journeys: JourneyStore, *, content: bool = False
    ) -> None:
        super().__init__(inner)
        self._observed = observed
        self._journeys = journeys
        observed.response_model, observed.fingerprint = inner.model, inner.fingerprint
        observed.usage, observed.timing = inner.usage, inner.timing
        observed.finish_reasons = [None] * inner.num_choices
        if content:
            observed.texts = [[] for _ in range(inner.num_choices)]
        self._chunks = self._run()

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        try:
            async for chunks in self.inner:
                for chunk in chunks:
                    self._see(chunk)
                yield chunks
        except BaseException as error:
            self._observed.error = error
            raise

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        see = self._see

        def through(chunk: Chunk) -> bool:
            if take(chunk):
                see(chunk)  # those that are not taken come by iteration
                return True
            return False

        self.inner.divert(through)

    async def aclose(self) -> None:
        await super().aclose()
        await self._chunks.aclose()
        observed, request = self._observed, self._observed.request
        if request is not None:
            observed.journey = self._journeys.find(self.id, request.tenant)

    def _see(self, chunk: Chunk) -> None:
        if chunk.finish_reason is not None:
            self._observed.finish_reasons[chunk.index] = chunk.finish_reason
        if self._observed.texts is not None:
            parts = self._observed.texts[chunk.index]
            parts.append(chunk.reasoning + chunk.text)
            for piece in chunk.calls:
                parts.append(f"{piece.name or ''}{piece.arguments}")
