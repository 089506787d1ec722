"""The routes."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.answer import AnswerRequest, Backend, ChatPrompt, Prompt, TextPrompt
from tokentrail.protocol import DEFAULTED, InvalidRequest, SamplingParams
from tokentrail.server.errors import HTTPError
from tokentrail.server.generation import caller_of
from tokentrail.server.learning.schema import MemoryAnswer, Settings, StepAnswer, StepRequest
from tokentrail.server.naming import find_model
from tokentrail.server.openai.messages import plain_messages
from tokentrail.server.openapi import answers, json_body, query
from tokentrail.server.schemas import json_response, read_json
from tokentrail.server.state import Guard, ServerState

_SETTINGS = Settings.__struct_fields__


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(prefix="/v1/learn", tags=["learn"])
    known: dict[str, MemoryAnswer] = {}

    @router.post("/step", openapi_extra=json_body(StepRequest) | answers(StepAnswer))
    async def step(request: Request) -> Response:
        """How the next token is drawn, one stage after the other: logits, penalties, temperature, min-p, top-k,
        top-p, draw.
        """
        body = await read_json(request, StepRequest, state.config.max_body_bytes)
        async with Guard(state, request):
            return json_response(await _step(state.backend_for(request), request, body))

    @router.get("/memory", openapi_extra=answers(MemoryAnswer) | query(model={"type": "string"}))
    async def memory(request: Request) -> Response:
        """What a model that runs here takes of memory, by the format of its weights and the length of its context."""
        backend = state.backend_for(request)
        card = find_model(backend, request.query_params.get("model") or backend.models()[0].id)
        name = card.parent or card.id
        if name not in known:
            from tokentrail.server.learning.memory import memory_of

            served = state.config.models
            engines = [one.engine for one in served or () if name in one.names]
            if served is not None and not engines:
                raise HTTPError(
                    404,
                    f"The model {name!r} does not run here, or is a route to others: ask for one that does.",
                    type="invalid_request_error",
                    code="model_not_found",
                )
            config = engines[0] if engines else state.config.engine
            loop = asyncio.get_running_loop()
            known[name] = await loop.run_in_executor(None, memory_of, config, name)
        return json_response(known[name])

    return router


async def _step(backend: Backend, request: Request, body: StepRequest) -> StepAnswer:
    card = find_model(backend, body.model)
    given = {name: value for name in (*_SETTINGS, "seed") if (value := getattr(body, name)) is not None}
    sampling = SamplingParams(max_tokens=len(body.tokens) + 1, **given)
    inner = backend.for_model(card.id)
    # Raises an error that names what is no token.
    inner.token_texts(body.tokens)
    asked = AnswerRequest(
        id=f"learn-{uuid.uuid4().hex}",
        prompts=[_prompt(body)],
        sampling=sampling,
        unset=[name for name in DEFAULTED if name not in given and name != "max_tokens"],
        model=card.id,
        endpoint=request.url.path,
        begun=body.tokens,
        reveal=True,
        **caller_of(request, 0, None),
    )
    answer = await backend.open(asked)
    logits, drawn, ends = None, -1, False
    try:
        async for chunks in answer:
            for chunk in chunks:
                logits = chunk.logits or logits
                drawn = chunk.token_ids[-1] if chunk.token_ids else drawn
                ends = chunk.finish_reason == "stop"
    finally:
        await answer.aclose()
    if logits is None or drawn < 0:
        raise InvalidRequest("No token can be drawn here: what is asked for leaves none.", param="tokens")
    from tokentrail.server.learning.stages import explain

    prompt = answer.prompt_token_ids[0]
    used = answer.sampling
    loop = asyncio.get_running_loop()
    candidates, kept, told = await loop.run_in_executor(
        None,
        lambda: explain(
            logits,
            used,
            seed=answer.seed,
            prompt=prompt,
            output=body.tokens,
            drawn=drawn,
            ends=ends,
            top=body.top,
            texts=inner.token_texts,
        ),
    )
    settings: dict[str, Any] = {name: getattr(used, name) for name in _SETTINGS}
    return StepAnswer(
        id=answer.id,
        model=card.id,
        seed=answer.seed,
        position=len(prompt) + len(body.tokens),
        prompt_tokens=len(prompt),
        settings=Settings(**settings),
        candidates=candidates,
        kept=kept,
        drawn=told,
    )


def _prompt(body: StepRequest) -> Prompt:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("Give either prompt or messages.", param="prompt")
    if body.messages is not None:
        return ChatPrompt(messages=plain_messages(body.messages))
    return TextPrompt(body.prompt or "")
