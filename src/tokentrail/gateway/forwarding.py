"""A backend before another one, and an answer before another one: all is handed on.

What stands between clients and models changes some of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from tokentrail.answer import (
    Answer,
    AnswerRequest,
    Backend,
    ChatPrompt,
    Chunk,
    EmbeddingRequest,
    Embeddings,
    ModelCard,
    ModelDetails,
    Prompt,
    TokenText,
)
from tokentrail.protocol import EngineStats


class ForwardingBackend:
    """See `answer.backend.Backend`."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def ready(self) -> bool:
        return self.inner.ready

    @property
    def stats(self) -> EngineStats:
        return self.inner.stats

    def models(self) -> list[ModelCard]:
        return self.inner.models()

    def details(self, id: str) -> ModelDetails:
        return self.inner.details(id)

    def render(self, prompt: ChatPrompt) -> str:
        return self.inner.render(prompt)

    def tokenize(
        self, prompt: Prompt, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        return self.inner.tokenize(prompt, add_special_tokens, parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self.inner.detokenize(ids)

    def token_texts(self, ids: Sequence[int]) -> list[TokenText]:
        return self.inner.token_texts(ids)

    def tokenizer_info(self) -> dict[str, Any]:
        return self.inner.tokenizer_info()

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        return await self.inner.embed(request)

    async def open(self, request: AnswerRequest) -> Answer:
        return await self.inner.open(request)


class ForwardingAnswer:
    """See `answer.backend.Answer`."""

    def __init__(self, inner: Answer) -> None:
        self.inner = inner
        self.id, self.model, self.created = inner.id, inner.model, inner.created
        self.seed, self.sampling = inner.seed, inner.sampling
        self.prompt_token_ids, self.num_choices = inner.prompt_token_ids, inner.num_choices
        # These grow while the answer is iterated, and are the inner answer's own.
        self.usage, self.timing, self.headers = inner.usage, inner.timing, inner.headers

    @property
    def fingerprint(self) -> str:
        """A remote upstream tells its own with the answer."""
        return self.inner.fingerprint

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return aiter(self.inner)

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        self.inner.divert(take)

    async def aclose(self) -> None:
        await self.inner.aclose()

    def sent(self, seconds: float) -> None:
        self.inner.sent(seconds)
