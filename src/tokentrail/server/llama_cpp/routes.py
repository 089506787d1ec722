"""The routes of the dialect of llama.cpp's server."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokentrail import __version__
from tokentrail.answer import Backend
from tokentrail.protocol import DEFAULTED, InvalidRequest, SamplingParams
from tokentrail.server.embedding import as_numbers, embed
from tokentrail.server.errors import unavailable
from tokentrail.server.generation import Generation
from tokentrail.server.llama_cpp.completion import CompletionDialect, settings
from tokentrail.server.llama_cpp.prompts import logit_bias_of, prompts_of, several
from tokentrail.server.llama_cpp.requests import (
    ApplyTemplateRequest,
    CompletionRequest,
    EmbeddingRequest,
    InfillRequest,
)
from tokentrail.server.llama_cpp.responses import (
    Applied,
    Completion,
    Embedded,
    GenerationDefaults,
    Props,
    Slot,
    TemplateCaps,
)
from tokentrail.server.naming import find_model, main_model
from tokentrail.server.openai.chat import prompt_of
from tokentrail.server.openapi import answers, json_body
from tokentrail.server.schemas import Model, json_response, read_json
from tokentrail.server.state import ServerState

PATHS = ("/completion", "/infill", "/embedding", "/apply-template", "/props", "/slots")


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["llama.cpp"])

    async def read(request: Request, model: type[Model]) -> Model:
        return await read_json(request, model, state.config.max_body_bytes, any_type=True)

    async def completion(request: Request) -> Response:
        """Continue a text, tokens, or several of them; with `stream`, as server-sent events."""
        body = await read(request, CompletionRequest)
        backend = state.backend_for(request)
        model = _model(backend, body.model)
        # Long texts take a while, which must not hold up streams.
        loop = asyncio.get_running_loop()
        prompts, bias = await loop.run_in_executor(
            None,
            lambda: (
                prompts_of(body.prompt, backend.for_model(model), choices=body.choices),
                logit_bias_of(body, backend.for_model(model)),
            ),
        )
        dialect = CompletionDialect(body, model, prompts, bias, backend, listed=several(body))
        return Generation(state, request, dialect)

    # With `response_fields` any of its fields may be missing.
    completed = answers(
        Completion,
        list[Completion],
        dict[str, Any],
        list[dict[str, Any]],
        streams=(Completion, dict[str, Any]),
    )
    schema = json_body(CompletionRequest) | completed
    router.add_api_route("/completion", completion, methods=["POST"], openapi_extra=schema)
    router.add_api_route("/completions", completion, methods=["POST"], include_in_schema=False)

    @router.post("/infill", openapi_extra=json_body(InfillRequest) | completed)
    async def infill(request: Request) -> Response:
        """Fill in the middle of a text; with `stream`, as server-sent events."""
        body = await read(request, InfillRequest)
        backend = state.backend_for(request)
        model = _model(backend, body.model)
        if not backend.details(model).infills:
            raise InvalidRequest(
                "/infill is not supported: this model has no tokens for filling in the middle of a text."
            )
        loop = asyncio.get_running_loop()
        bias = await loop.run_in_executor(None, logit_bias_of, body, backend.for_model(model))
        dialect = CompletionDialect(body, model, [body.infill], bias, backend, listed=several(body))
        return Generation(state, request, dialect)

    async def embedding(request: Request) -> Response:
        """Vectors of texts or tokens."""
        body = await read(request, EmbeddingRequest)
        backend = state.backend_for(request)
        model = _model(backend, body.model)
        given, field = (body.content, "content") if body.input is None else (body.input, "input")
        prompts = await asyncio.get_running_loop().run_in_executor(
            None, prompts_of, given, backend.for_model(model), field
        )
        normalize = body.embd_normalize == 2
        made = await embed(state, request, model, prompts, normalize=normalize, field=field)
        vectors = await as_numbers(made)
        return json_response([Embedded(index, [one]) for index, one in enumerate(vectors)])

    schema = json_body(EmbeddingRequest) | answers(list[Embedded])
    router.add_api_route("/embedding", embedding, methods=["POST"], openapi_extra=schema)
    router.add_api_route("/embeddings", embedding, methods=["POST"], include_in_schema=False)

    @router.post("/apply-template", openapi_extra=json_body(ApplyTemplateRequest) | answers(Applied))
    async def apply_template(request: Request) -> Response:
        """What the chat template makes of a conversation."""
        body = await read(request, ApplyTemplateRequest)
        backend = state.backend_for(request)
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(None, lambda: backend.render(prompt_of(body)))
        return json_response(Applied(text))

    @router.get("/props", openapi_extra=answers(Props))
    async def props(request: Request) -> Response:
        """What the server has, and how it draws unless a request says."""
        backend = state.backend_for(request)
        card = main_model(backend)
        details = backend.details(card.id)
        drawn = details.defaults.fill(SamplingParams(), DEFAULTED)
        return json_response(
            Props(
                default_generation_settings=GenerationDefaults(
                    n_ctx=card.max_model_len, params=settings(drawn, card.max_model_len)
                ),
                total_slots=details.max_sequences,
                model_alias=card.id,
                model_path=details.file,
                chat_template=details.chat_template or "",
                chat_template_caps=TemplateCaps(details.calls_tools),
                bos_token=details.bos_token or "",
                eos_token=details.eos_token or "",
                build_info=f"tokentrail-{__version__}",
            )
        )

    @router.get("/slots", openapi_extra=answers(list[Slot]))
    async def slots(request: Request, fail_on_no_slot: str = "") -> Response:
        """Places for answers, and which are taken. With `fail_on_no_slot=1`: 503 if all are."""
        backend = state.backend_for(request)
        card = main_model(backend)
        count, running = backend.details(card.id).max_sequences, backend.stats.running
        if fail_on_no_slot and running >= count:
            raise unavailable("no slot available", "no_slot")
        return json_response(
            [Slot(id=id, n_ctx=card.max_model_len, is_processing=id < running) for id in range(count)]
        )

    return router


def _model(backend: Backend, name: str | None) -> str:
    return find_model(backend, name).id if name else main_model(backend).id
