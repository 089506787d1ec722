"""One request for embeddings over HTTP, in whatever dialect it came: made, logged, ended when its client leaves."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from starlette.requests import Request

from tokentrail.answer import EmbeddingRequest, Embeddings, Prompt
from tokentrail.answer.embedding import as_floats
from tokentrail.protocol import InvalidRequest
from tokentrail.server.generation import caller_of, in_words_of
from tokentrail.server.naming import find_model
from tokentrail.server.state import Guard, ServerState

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""Vectors that are written as numbers before others have their turn: a millisecond or so."""


Vector: TypeAlias = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "array", "items": {"type": "number"}})
]
"""As JSON."""


async def embed(
    state: ServerState,
    request: Request,
    model: str,
    prompts: list[Prompt],
    *,
    priority: int = 0,
    cache_salt: str | None = None,
    names: Mapping[str, str] | None = None,
    **options: Any,
) -> Embeddings:
    """`names`: see `generation.Question`; `options`: the other fields of `EmbeddingRequest`."""
    started = time.perf_counter()
    async with Guard(state, request):
        backend = state.backend_for(request)
        asked = EmbeddingRequest(
            id=f"embd-{uuid.uuid4().hex}",
            prompts=prompts,
            model=find_model(backend, model).id,
            endpoint=request.url.path,
            **caller_of(request, priority, cache_salt),
            **options,
        )
        try:
            made = await backend.embed(asked)
        except InvalidRequest as error:
            raise in_words_of(names or {}, error) from None
    request.state.told = made.headers
    if state.config.log_requests:
        seconds = time.perf_counter() - started
        usage = made.usage
        log.info(
            "%s %s: 200, %d prompt tokens (%d cached) → %d embeddings in %.2f s",
            made.id,
            request.url.path,
            usage.prompt_tokens,
            usage.cached_tokens,
            len(made.vectors),
            seconds,
        )
    return made


async def as_numbers(made: Embeddings) -> list[msgspec.Raw]:
    """The vectors as lists of numbers in JSON."""
    lists: list[msgspec.Raw] = []
    for index, vector in enumerate(made.vectors):
        if index and index % _AT_ONCE == 0:
            await asyncio.sleep(0)
        lists.append(msgspec.Raw(msgspec.json.encode(as_floats(vector))))
    return lists
