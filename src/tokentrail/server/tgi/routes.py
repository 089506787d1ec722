"""The routes of Text Generation Inference's dialect."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokentrail import __version__
from tokentrail.answer import Backend, ModelCard
from tokentrail.protocol import InvalidRequest
from tokentrail.server.generation import Generation
from tokentrail.server.naming import main_model
from tokentrail.server.openapi import answers, json_body
from tokentrail.server.schemas import json_response, read_json
from tokentrail.server.state import ServerState
from tokentrail.server.tgi.generate import GenerateDialect
from tokentrail.server.tgi.requests import CompatRequest, GenerateRequest, Parameters
from tokentrail.server.tgi.responses import Generated, Info, StreamEvent


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["Text Generation Inference"])

    def answer(request: Request, body: GenerateRequest, *, streaming: bool, listed: bool = False) -> Response:
        backend = state.backend_for(request)
        parameters = body.parameters or Parameters()
        if streaming:
            parameters.check_stream()
        card = _card(backend, parameters)
        dialect = GenerateDialect(body, card, streaming=streaming, listed=listed)
        return Generation(state, request, dialect)

    @router.post("/generate", openapi_extra=json_body(GenerateRequest) | answers(Generated))
    async def generate(request: Request) -> Response:
        """Continue a text."""
        body = await read_json(request, GenerateRequest, state.config.max_body_bytes)
        return answer(request, body, streaming=False)

    @router.post("/generate_stream", openapi_extra=json_body(GenerateRequest) | answers(streams=StreamEvent))
    async def generate_stream(request: Request) -> Response:
        """Continue a text, as server-sent events: one a token."""
        body = await read_json(request, GenerateRequest, state.config.max_body_bytes)
        return answer(request, body, streaming=True)

    @router.post("/", openapi_extra=json_body(CompatRequest) | answers(list[Generated], streams=StreamEvent))
    async def compat(request: Request) -> Response:
        """Continue a text, as events or as a list of one answer: what Hugging Face's clients ask."""
        body = await read_json(request, CompatRequest, state.config.max_body_bytes)
        return answer(request, body, streaming=bool(body.stream), listed=True)

    @router.get("/info", openapi_extra=answers(Info))
    async def info(request: Request) -> Response:
        """What the server has, and its limits."""
        backend = state.backend_for(request)
        card = main_model(backend)
        details = backend.details(card.id)
        return json_response(
            Info(
                model_id=card.id,
                model_sha=details.fingerprint,
                model_dtype=details.quantization,
                max_concurrent_requests=details.max_sequences,
                max_best_of=128,
                max_stop_sequences=1024,
                max_input_tokens=card.max_model_len - 1,
                max_total_tokens=card.max_model_len,
                version=__version__,
            )
        )

    return router


def _card(backend: Backend, parameters: Parameters) -> ModelCard:
    cards = backend.models()
    name = parameters.adapter_id
    if not name:
        return main_model(backend)
    for card in cards:
        if card.id == name:
            return card
    raise InvalidRequest(
        f"parameters.adapter_id {name[:80]!r} is none of {', '.join(card.id for card in cards)}.",
        param="parameters.adapter_id",
    )
