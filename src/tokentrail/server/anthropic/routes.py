"""The routes of Anthropic's dialect."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from tokentrail.answer import ModelCard
from tokentrail.protocol import InvalidRequest, ModelNotFound
from tokentrail.server.anthropic.messages import MessagesDialect
from tokentrail.server.anthropic.prompts import prompt_of
from tokentrail.server.anthropic.requests import CountTokensRequest, MessagesRequest
from tokentrail.server.anthropic.responses import Event, MessageBody, TokenCount
from tokentrail.server.generation import Generation
from tokentrail.server.openapi import answers, json_body
from tokentrail.server.paging import limit_of
from tokentrail.server.schemas import json_response, read_json
from tokentrail.server.state import ServerState

VERSION_HEADER = b"anthropic-version"
"""Sent by all of its clients. Any version will do."""
PREFIX = "/v1/messages"
_MOST_LISTED = 1000


def create_router(state: ServerState) -> APIRouter:
    """To be included before OpenAI's, which has the same paths for models."""
    router = APIRouter(tags=["Anthropic"])

    @router.post(PREFIX, openapi_extra=json_body(MessagesRequest) | answers(MessageBody, streams=Event))
    async def messages(request: Request) -> Response:
        """Answer a conversation; with `stream`, as server-sent events."""
        body = await read_json(request, MessagesRequest, state.config.max_body_bytes)
        return Generation(state, request, MessagesDialect(body, request.state.client_request_id or ""))

    @router.post(f"{PREFIX}/count_tokens", openapi_extra=json_body(CountTokensRequest) | answers(TokenCount))
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation is to the model."""
        body = await read_json(request, CountTokensRequest, state.config.max_body_bytes)
        backend = state.backend_for(request)
        if all(card.id != body.model for card in backend.models()):
            raise ModelNotFound(body.model)
        prompt = prompt_of(body)
        # A long text takes a while, which must not hold up streams.
        ids = await asyncio.get_running_loop().run_in_executor(
            None, backend.for_model(body.model).tokenize, prompt
        )
        return json_response(TokenCount(len(ids)))

    models = APIRouter(prefix="/v1/models", route_class=_VersionedRoute, include_in_schema=False)

    @models.get("")
    async def list_models(request: Request) -> Response:
        """The models one can ask, a page of them."""
        return json_response(_page(state.backend_for(request).models(), request))

    @models.get("/{id:path}")
    async def get_model(request: Request, id: str) -> Response:
        """One model."""
        for card in state.backend_for(request).models():
            if card.id == id:
                return json_response(_model(card))
        raise ModelNotFound(id)

    router.include_router(models)
    return router


class _VersionedRoute(APIRoute):
    """For requests with an `anthropic-version` alone."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if all(name != VERSION_HEADER for name, _ in scope.get("headers", ())):
            return Match.NONE, {}
        return super().matches(scope)


def _model(card: ModelCard) -> dict[str, Any]:
    created = datetime.fromtimestamp(card.created, timezone.utc).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": card.max_model_len,
        "max_tokens": card.max_model_len,
    }


def _page(cards: list[ModelCard], request: Request) -> dict[str, Any]:
    given = request.query_params
    limit = limit_of(request, _MOST_LISTED)
    ids = [card.id for card in cards]
    first, last = 0, len(ids)
    if (after := given.get("after_id")) is not None:
        first = _position(ids, after, "after_id") + 1
    if (before := given.get("before_id")) is not None:
        last = _position(ids, before, "before_id")
    count = max(0, last - first)
    # Before a model: those next to it.
    start = max(first, last - limit) if before is not None else first
    page = cards[start : min(last, start + limit)]
    return {
        "data": [_model(card) for card in page],
        "has_more": count > len(page),
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }


def _position(ids: list[str], id: str, field: str) -> int:
    if id not in ids:
        raise InvalidRequest(f"{field} must be the id of a model, not {id[:80]!r}.", param=field)
    return ids.index(id)
