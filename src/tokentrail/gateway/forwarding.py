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
    Timing,
    TokenText,
    Usage,
)
from tokentrail.protocol import EngineStats, SamplingParams


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

    def for_model(self, id: str) -> Backend:
        return self.inner.for_model(id)

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
    """See `answer.backend.Answer`. What it says of itself is what the inner answer says at that moment: routes may
    change who answers until the first piece has come.
    """

    id: str
    model: str
    created: int
    seed: int
    fingerprint: str
    prompt_token_ids: list[list[int]]
    usage: Usage
    sampling: SamplingParams
    timing: Timing
    num_choices: int
    headers: dict[str, str]

    def __init__(self, inner: Answer) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return aiter(self.inner)

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        self.inner.divert(take)

    async def aclose(self) -> None:
        await self.inner.aclose()

    def sent(self, seconds: float) -> None:
        self.inner.sent(seconds)
