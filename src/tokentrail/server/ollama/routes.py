"""The routes of Ollama's dialect."""

from __future__ import annotations

import time

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokentrail.answer import TextPrompt
from tokentrail.answer.embedding import check_inputs
from tokentrail.protocol import TokentrailError
from tokentrail.server.embedding import as_numbers, embed
from tokentrail.server.errors import HTTPError
from tokentrail.server.generation import Generation
from tokentrail.server.ollama.answers import ChatDialect, GenerateDialect, loaded
from tokentrail.server.ollama.models import find, listed, running, shown
from tokentrail.server.ollama.requests import (
    AnyModel,
    ChatRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    PullRequest,
)
from tokentrail.server.ollama.responses import (
    Embedded,
    EmbeddedOne,
    ModelList,
    Reply,
    ShownModel,
    Status,
    Version,
)
from tokentrail.server.openai.embeddings import MOST_INPUTS
from tokentrail.server.openapi import LINES, answers, json_body
from tokentrail.server.schemas import Model, json_response, read_json
from tokentrail.server.state import ServerState

VERSION = "0.13.0"
"""The version of Ollama whose API this is: clients ask whether the server is at least so new."""


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["Ollama"])

    async def read(request: Request, model: type[Model]) -> Model:
        return await read_json(request, model, state.config.max_body_bytes, any_type=True)

    @router.post("/chat", openapi_extra=json_body(ChatRequest) | answers(Reply, lines=Reply))
    async def chat(request: Request) -> Response:
        """Answer a conversation; streamed as lines of JSON unless `stream` is false."""
        body = await read(request, ChatRequest)
        backend = state.backend_for(request)
        card = find(backend, body.model)
        dialect = ChatDialect(body, card.id, backend.details(card.id))
        return Generation(state, request, dialect) if body.messages else json_response(loaded(dialect))

    @router.post("/generate", openapi_extra=json_body(GenerateRequest) | answers(Reply, lines=Reply))
    async def generate(request: Request) -> Response:
        """Answer or, with `raw`, continue a text; streamed as lines of JSON unless `stream` is false."""
        body = await read(request, GenerateRequest)
        backend = state.backend_for(request)
        card = find(backend, body.model)
        dialect = GenerateDialect(body, card.id, backend.details(card.id))
        asked = body.prompt or body.suffix
        return Generation(state, request, dialect) if asked else json_response(loaded(dialect))

    @router.post("/embed", openapi_extra=json_body(EmbedRequest) | answers(Embedded))
    async def embed_texts(request: Request) -> Response:
        """Vectors of texts, of length 1."""
        body = await read(request, EmbedRequest)
        card = find(state.backend_for(request), body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input or []
        check_inputs(len(texts) or 1, MOST_INPUTS, "input")
        received: float = request.state.received
        vectors: list[msgspec.Raw] = []
        tokens = 0
        if texts:
            made = await embed(
                state,
                request,
                card.id,
                [TextPrompt(text) for text in texts],
                dimensions=body.dimensions,
                truncate_tokens=None if body.truncate is False else -1,
            )
            vectors, tokens = await as_numbers(made), made.usage.prompt_tokens
        seconds = time.time() - received
        return json_response(
            Embedded(
                model=body.model,
                embeddings=vectors,
                total_duration=max(1, int(seconds * 1e9)),
                prompt_eval_count=tokens,
            )
        )

    @router.post("/embeddings", openapi_extra=json_body(EmbeddingsRequest) | answers(EmbeddedOne))
    async def embeddings(request: Request) -> Response:
        """The vector of a text, as the model makes it."""
        body = await read(request, EmbeddingsRequest)
        card = find(state.backend_for(request), body.model)
        vector = msgspec.Raw(b"[]")
        if body.prompt:
            prompt = TextPrompt(body.prompt)
            made = await embed(
                state, request, card.id, [prompt], normalize=False, truncate_tokens=-1, field="prompt"
            )
            (vector,) = await as_numbers(made)
        return json_response(EmbeddedOne(vector))

    @router.get("/tags", openapi_extra=answers(ModelList))
    async def tags(request: Request) -> Response:
        """The models one can ask."""
        backend = state.backend_for(request)
        return json_response(ModelList([listed(backend, card) for card in backend.models()]))

    @router.get("/ps", openapi_extra=answers(ModelList))
    async def ps(request: Request) -> Response:
        """The models in memory: all of them."""
        backend = state.backend_for(request)
        return json_response(ModelList([running(backend, card) for card in backend.models()]))

    @router.post("/show", openapi_extra=json_body(AnyModel) | answers(ShownModel))
    async def show(request: Request) -> Response:
        """What a model is, and what it can do."""
        body = await read(request, AnyModel)
        backend = state.backend_for(request)
        return json_response(shown(backend, find(backend, body.asked)))

    @router.get("/version", openapi_extra=answers(Version))
    async def version() -> Response:
        """The version of Ollama whose API this is."""
        return json_response(Version(VERSION))

    @router.post("/pull", openapi_extra=json_body(PullRequest) | answers(Status, lines=Status))
    async def pull(request: Request) -> Response:
        """A model that is served is there already; others are refused."""
        body = await read(request, PullRequest)
        try:
            find(state.backend_for(request), body.asked)
        except TokentrailError as error:
            raise _refused(
                f"{error.message}. To serve another model, start it with tokentrail serve."
            ) from None
        done = json_response(Status("success"))
        if body.stream is not False:
            done.headers["content-type"] = LINES
        return done

    async def manage(request: Request) -> Response:
        """Refused: models are not managed over HTTP."""
        raise _refused(
            f"{request.method} {request.url.path} is not supported: this server has the model that it was started with."
        )

    for path, method in _MANAGEMENT:
        router.add_api_route(path, manage, methods=[method], include_in_schema=False)
    return router


_MANAGEMENT = (
    ("/create", "POST"),
    ("/copy", "POST"),
    ("/delete", "DELETE"),
    ("/push", "POST"),
    ("/blobs/{digest}", "POST"),
)


def _refused(message: str) -> HTTPError:
    return HTTPError(403, message, type="invalid_request_error", code="not_supported")
