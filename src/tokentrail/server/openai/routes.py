"""The routes of OpenAI's dialect."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.answer import ModelCard
from tokentrail.protocol import ModelNotFound
from tokentrail.server.generation import Generation
from tokentrail.server.openai import chat, completions
from tokentrail.server.openai.embeddings import add_embeddings
from tokentrail.server.openai.moderations import Moderation, ModerationRequest, moderate
from tokentrail.server.openai.requests import ChatCompletionRequest, CompletionRequest
from tokentrail.server.openai.responses import ChatChunk, ChatCompletion, Completion, ModelBody, ModelList
from tokentrail.server.openapi import answers, json_body
from tokentrail.server.schemas import json_response, read_json
from tokentrail.server.state import ServerState


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.post(
        "/chat/completions",
        openapi_extra=json_body(ChatCompletionRequest)
        | answers(ChatCompletion, streams=ChatChunk, done=True),
    )
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation; with `stream`, as server-sent events."""
        body = await read_json(request, ChatCompletionRequest, state.config.max_body_bytes)
        trusted = state.config.trust_request_chat_template
        return Generation(state, request, chat.ChatDialect(body, trust_template=trusted))

    @router.post(
        "/completions",
        openapi_extra=json_body(CompletionRequest) | answers(Completion, streams=Completion, done=True),
    )
    async def text_completions(request: Request) -> Response:
        """Continue one or several texts or token lists; with `stream`, as server-sent events."""
        body = await read_json(request, CompletionRequest, state.config.max_body_bytes)
        return Generation(state, request, completions.CompletionDialect(body))

    add_embeddings(router, state)

    @router.post("/moderations", openapi_extra=json_body(ModerationRequest) | answers(Moderation))
    async def moderations(request: Request) -> Response:
        """What the filters of the deployment file find in a text."""
        body = await read_json(request, ModerationRequest, state.config.max_body_bytes)
        return json_response(await moderate(body, state, request))

    @router.get("/models", openapi_extra=answers(ModelList))
    async def list_models(request: Request) -> Response:
        """The models one can ask."""
        return json_response(ModelList(data=[_model(card) for card in state.backend_for(request).models()]))

    @router.get("/models/{id:path}", openapi_extra=answers(ModelBody))
    async def get_model(request: Request, id: str) -> Response:
        """One model."""
        for card in state.backend_for(request).models():
            if card.id == id:
                return json_response(_model(card))
        raise ModelNotFound(id)

    return router


def _model(card: ModelCard) -> ModelBody:
    return ModelBody(
        id=card.id,
        created=card.created,
        root=card.root,
        parent=card.parent,
        max_model_len=card.max_model_len,
    )
