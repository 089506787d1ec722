"""What the server asks: local engines and remote upstreams implement it alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import msgspec

from tokentrail.answer.embedding import EmbeddingRequest, Embeddings
from tokentrail.answer.types import (
    AnswerRequest,
    CallPiece,
    ChatPrompt,
    Choice,
    Chunk,
    ModelCard,
    ModelDetails,
    Prompt,
    Timing,
    TokenText,
    Usage,
)
from tokentrail.protocol import EngineStats, SamplingParams


class Answer(Protocol):
    """An admitted request. Iterate it once; `aclose`, or cancelling the iteration, stops all of it."""

    id: str
    model: str
    created: int
    seed: int
    """The seed used, given or drawn: the same request with it gives the same bytes."""

    @property
    def fingerprint(self) -> str:
        """Of what made it; a remote upstream tells it with the answer, and until then it is the latest one known."""
        ...

    prompt_token_ids: list[list[int]]
    """Of each prompt; empty where a remote upstream does not tell them."""
    usage: Usage
    """Grows while the answer is iterated; `prompt_tokens` is final from the start, but for remote upstreams, of which
    it is an estimate until they have counted.
    """
    sampling: SamplingParams
    """As it is used: with what its request left to others, but for `seed` and `max_tokens`."""
    timing: Timing
    """Grows like `usage`."""
    num_choices: int
    headers: dict[str, str]
    """What clients are told beside the answer. May grow until its end."""

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        """Batches of chunks, each of what was ready at once; never empty.

        Raises `Overloaded` before the first chunk if the queue is full, and `EngineDead` or `UpstreamError` at any
        time. A remote upstream's refusals (`InvalidRequest`) come here, too, before the first chunk.
        """
        ...

    def divert(self, take: Callable[[Chunk], bool]) -> None:
        """From now on offer each chunk, and now those that wait for the iterator, to `take` first: in the very
        call in which it is made, without waking who iterates. When it does not take one (it returns False),
        that one and all that follow come by iteration, until the next call. Iteration ends, or raises, as
        ever. An error that `take` raises ends the answer with it.
        """
        ...

    async def aclose(self) -> None: ...

    def sent(self, seconds: float) -> None:
        """The caller spent `seconds` on handing chunks to the client."""
        ...


class Backend(Protocol):
    """Something that answers."""

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now."""
        ...

    @property
    def stats(self) -> EngineStats:
        """Sizes now."""
        ...

    def models(self) -> list[ModelCard]: ...

    def details(self, id: str) -> ModelDetails:
        """Of one of `models`."""
        ...

    def for_model(self, id: str) -> Backend:
        """Who knows the texts of one of `models`: the methods below speak of that one."""
        ...

    def render(self, prompt: ChatPrompt) -> str:
        """A conversation as the model gets it. Raises `InvalidRequest`."""
        ...

    def tokenize(
        self, prompt: Prompt, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a prompt: those that a request with it would be answered for. Safe in another thread.

        `add_special_tokens` False: a text without the token that begins the model's texts. `parse_special` False:
        control tokens that are written in it are text. Raises `InvalidRequest`.
        """
        ...

    def token_texts(self, ids: Sequence[int]) -> list[TokenText]:
        """Tokens of the vocabulary, one by one. Raises `InvalidRequest` for what is no token id."""
        ...

    def detokenize(self, ids: Sequence[int]) -> str:
        """Their text, special tokens included. Raises `InvalidRequest` for what is no token id."""
        ...

    def tokenizer_info(self) -> dict[str, Any]:
        """`bos_token` and `eos_token` (texts or None), and `chat_template`."""
        ...

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """The prompts' vectors. Cancelling it ends all of it. Raises `InvalidRequest`, `Overloaded`, `EngineDead`."""
        ...

    async def open(self, request: AnswerRequest) -> Answer:
        """Check and admit `request`. Raises `InvalidRequest` and its kin; nothing runs then."""
        ...


async def collect(answer: Answer) -> list[Choice]:
    """The whole answer: exactly its chunks, joined."""
    parts: list[list[Chunk]] = [[] for _ in range(answer.num_choices)]
    try:
        async for chunks in answer:
            for chunk in chunks:
                parts[chunk.index].append(chunk)
    finally:
        await answer.aclose()
    return [join(index, chunks) for index, chunks in enumerate(parts)]


def join(index: int, chunks: list[Chunk]) -> Choice:
    asked = any(chunk.logprobs is not None for chunk in chunks)
    return Choice(
        index=index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token for chunk in chunks for token in chunk.token_ids],
        logprobs=[entry for chunk in chunks for entry in chunk.logprobs or ()] if asked else None,
        finish_reason=chunks[-1].finish_reason if chunks else None,
        stop_reason=chunks[-1].stop_reason if chunks else None,
        reasoning="".join(chunk.reasoning for chunk in chunks),
        calls=_join_calls(chunks),
        prompt_logprobs=next((c.prompt_logprobs for c in chunks if c.prompt_logprobs is not None), None),
    )


def _join_calls(chunks: list[Chunk]) -> list[CallPiece]:
    calls: list[CallPiece] = []
    for piece in (piece for chunk in chunks for piece in chunk.calls):
        if piece.name is not None:
            calls.append(msgspec.structs.replace(piece))
        else:
            calls[piece.index].arguments += piece.arguments
    return calls
