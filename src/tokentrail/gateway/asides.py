"""What the gateway answers itself, without a model: it passes limits, the ledger and metrics as other requests do."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from tokentrail.answer import EmbeddingRequest, Embeddings, Usage
from tokentrail.gateway.forwarding import ForwardingBackend


class Aside(EmbeddingRequest, kw_only=True):
    """Of an embedding request it has who asks and when, but no prompts; what comes of it has no vectors."""

    work: Callable[[], Awaitable[None]]
    """Done once it is admitted."""


class AsideBackend(ForwardingBackend):
    """See `answer.backend.Backend`."""

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        if not isinstance(request, Aside):
            return await self.inner.embed(request)
        await request.work()
        return Embeddings(
            id=request.id, model=request.model, created=int(time.time()), vectors=[], usage=Usage()
        )
