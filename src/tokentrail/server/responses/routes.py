"""The routes of the Responses API."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.answer import Backend, ChatPrompt
from tokentrail.protocol import InvalidRequest, ModelNotFound
from tokentrail.server.errors import HTTPError
from tokentrail.server.generation import Generation
from tokentrail.server.openapi import answers, json_body, query
from tokentrail.server.paging import limit_of
from tokentrail.server.responses.answers import ResponsesDialect
from tokentrail.server.responses.bodies import Deleted, Event, InputTokens, ItemPage, ResponseBody
from tokentrail.server.responses.items import cut_to_fit, kept_form, references, resolved
from tokentrail.server.responses.questions import prompt_of
from tokentrail.server.responses.requests import Item, ResponsesRequest
from tokentrail.server.responses.store import Kept, ResponseStore
from tokentrail.server.schemas import json_response, read_json
from tokentrail.server.state import ServerState

_MOST_LISTED = 100
_SOON_READ = 200_000
"""Bytes of what is kept from which reading it may hold up streams, and goes to a thread."""
_OFF = "This server keeps no responses: start it with --responses-store, which says how many."


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(prefix="/v1/responses", tags=["OpenAI Responses"])
    store = ResponseStore(state.config.responses_store)

    @router.post("", openapi_extra=json_body(ResponsesRequest) | answers(ResponseBody, streams=Event))
    async def create(request: Request) -> Response:
        """Answer items; with `stream`, as typed events."""
        body = await read_json(request, ResponsesRequest, state.config.max_body_bytes)
        tenant: str = request.state.identity.tenant
        history, items = await _told(store, tenant, body)
        prompt: ChatPrompt | None = None
        if body.truncation == "auto":
            prompt = await _fitting(state.backend_for(request), body, prompt_of(body, history, items))

        def keep(response: ResponseBody) -> None:
            kept = [kept_form(item) for item in items]
            store.keep(tenant, response.id, response, response.output, kept, body.previous_response_id)

        dialect = ResponsesDialect(
            body,
            lambda: prompt_of(body, history, items) if prompt is None else prompt,
            keep if store.count and body.store is not False else None,
        )
        return Generation(state, request, dialect)

    @router.post("/input_tokens", openapi_extra=json_body(ResponsesRequest) | answers(InputTokens))
    async def input_tokens(request: Request) -> Response:
        """How many tokens a request is to the model."""
        body = await read_json(request, ResponsesRequest, state.config.max_body_bytes)
        backend = state.backend_for(request)
        if all(card.id != body.model for card in backend.models()):
            raise ModelNotFound(body.model)
        prompt = prompt_of(body, *await _told(store, request.state.identity.tenant, body))
        # A long text takes a while, which must not hold up streams.
        ids = await asyncio.get_running_loop().run_in_executor(
            None, backend.for_model(body.model).tokenize, prompt
        )
        return json_response(InputTokens(input_tokens=len(ids)))

    @router.get("/{id}", openapi_extra=answers(ResponseBody))
    async def retrieve(request: Request, id: str) -> Response:
        """A response that is kept."""
        if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
            raise InvalidRequest("stream is not supported here: responses are kept whole.", param="stream")
        return Response(_kept(store, request, id).response, media_type="application/json")

    @router.delete("/{id}", openapi_extra=answers(Deleted))
    async def delete(request: Request, id: str) -> Response:
        """Forget a response."""
        _kept(store, request, id)
        store.delete(request.state.identity.tenant, id)
        return json_response(Deleted(id))

    @router.post("/{id}/cancel", openapi_extra=answers(ResponseBody))
    async def cancel(request: Request, id: str) -> Response:
        """Refused: only responses in the background can be cancelled, and here are none."""
        _kept(store, request, id)
        raise InvalidRequest(
            "Only responses in the background can be cancelled, and this server has none. To end an answer, close the "
            "connection.",
            param="id",
        )

    @router.get(
        "/{id}/input_items",
        openapi_extra=answers(ItemPage)
        | query(
            limit={"type": "integer", "minimum": 1, "maximum": _MOST_LISTED, "default": 20},
            order={"type": "string", "enum": ["asc", "desc"], "default": "desc"},
            after={"type": "string"},
        ),
    )
    async def input_items(request: Request, id: str) -> Response:
        """What was asked with a response, a page of it. `limit`: 1 to 100, default 20; `order`: desc or asc."""
        items = msgspec.json.decode(_kept(store, request, id).items)
        return json_response(_page(items, request))

    return router


async def _told(store: ResponseStore, tenant: str, body: ResponsesRequest) -> tuple[list[Item], list[Item]]:
    """(what was said in earlier responses, the items of this request)"""
    before = _before(store, tenant, body.previous_response_id)
    holders = store.holders(tenant, references(body.input))

    def read() -> tuple[list[Item], list[Item]]:
        history = [Item.model_validate(item) for kept in before for item in kept.all_items()]
        kept_items = {item["id"]: item for kept in holders for item in kept.all_items()}
        return history, resolved(body.input, kept_items)

    if sum(kept.size for kept in (*before, *holders)) < _SOON_READ:
        return read()
    return await asyncio.get_running_loop().run_in_executor(None, read)


def _before(store: ResponseStore, tenant: str, id: str | None) -> list[Kept]:
    """The responses up to this one."""
    if id is None:
        return []
    if not store.count:
        message = f"previous_response_id is not supported. {_OFF} Or send the conversation in input."
        raise InvalidRequest(message, param="previous_response_id")
    found = store.chain(tenant, id)
    if isinstance(found, str):
        which = "Previous response" if found == id else "A response before the previous one,"
        raise InvalidRequest(
            f"{which} with the id {found[:80]!r} is not kept. Send the conversation in input.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return found


async def _fitting(backend: Backend, body: ResponsesRequest, prompt: ChatPrompt) -> ChatPrompt:
    """`truncation: auto`."""
    context = next((card.max_model_len for card in backend.models() if card.id == body.model), None)
    if context is None:
        return prompt  # refused soon
    room = context - max(1, body.max_output_tokens or 1)
    # Counting takes a while, which must not hold up streams.
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(
        None, cut_to_fit, prompt, lambda one: len(backend.for_model(body.model).tokenize(one)), room
    )


def _kept(store: ResponseStore, request: Request, id: str) -> Kept:
    kept = store.get(request.state.identity.tenant, id)
    if kept is None:
        message = f"Response with id {id[:80]!r} not found."
        raise HTTPError(
            404, message if store.count else f"{message} {_OFF}", type="invalid_request_error", param="id"
        )
    return kept


def _page(items: list[dict[str, Any]], request: Request) -> ItemPage:
    given = request.query_params
    limit, order = limit_of(request, _MOST_LISTED), given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order must be asc or desc, not {order[:40]!r}.", param="order")
    if order == "desc":
        items.reverse()
    start = 0
    if (after := given.get("after")) is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidRequest(f"after must be the id of an item, not {after[:80]!r}.", param="after")
        start = ids.index(after) + 1
    page = items[start : start + limit]
    return ItemPage(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=start + len(page) < len(items),
    )
