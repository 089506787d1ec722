"""The models that a key may ask, as if there were no others."""

from __future__ import annotations

from tokentrail.answer import (
    Answer,
    AnswerRequest,
    Backend,
    EmbeddingRequest,
    Embeddings,
    Identity,
    ModelCard,
    ModelDetails,
)
from tokentrail.gateway.forwarding import ForwardingBackend
from tokentrail.protocol import ModelNotFound


class ScopedBackend(ForwardingBackend):
    """A backend as one identity sees it. Made for each request of a key that may not ask all models: whatever route
    asks, in whatever dialect, it sees no more.
    """

    def __init__(self, inner: Backend, identity: Identity) -> None:
        super().__init__(inner)
        self._identity = identity

    def models(self) -> list[ModelCard]:
        return [card for card in self.inner.models() if self._identity.may_ask(card.id)]

    def details(self, id: str) -> ModelDetails:
        self._check(id)
        return self.inner.details(id)

    def for_model(self, id: str) -> Backend:
        self._check(id)
        return self.inner.for_model(id)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        self._check(request.model)
        return await self.inner.embed(request)

    async def open(self, request: AnswerRequest) -> Answer:
        self._check(request.model)
        return await self.inner.open(request)

    def _check(self, model: str) -> None:
        if not self._identity.may_ask(model):
            raise ModelNotFound(model)
