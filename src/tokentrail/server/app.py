"""The ASGI application: routes, middleware and error handlers around a `ServerState`."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from tokentrail import __version__
from tokentrail.answer import Identity, TargetState
from tokentrail.journey.schema import JourneyList, JourneyView
from tokentrail.protocol import TokentrailError
from tokentrail.server import about, admin, batches, learning, tokenizing, watching
from tokentrail.server.anthropic import routes as anthropic
from tokentrail.server.anthropic.errors import anthropic_shape
from tokentrail.server.errors import (
    RATE_LIMIT_HEADERS,
    HTTPError,
    Shape,
    every_route,
    on_error,
    on_http_exception,
)
from tokentrail.server.gate import Gate, RequestIds, shape_of
from tokentrail.server.hosts import Hosts
from tokentrail.server.openai.routes import create_router
from tokentrail.server.openapi import answers, describe, query, text_answer
from tokentrail.server.paging import limit_of
from tokentrail.server.responses import routes as responses
from tokentrail.server.schemas import json_response
from tokentrail.server.state import ServerState
from tokentrail.server.ui.page import PREFIX, Page, is_browser, wants_page

_MOST_LISTED = 1000


class Health(msgspec.Struct, omit_defaults=True):
    """Whether requests are taken."""

    status: str
    """ok, or why not."""
    targets: list[TargetState] | None = None
    """Of the routes; for admins."""


def create_app(state: ServerState) -> FastAPI:
    """The application for `state`, whose backend may be set later: until then, health is 503."""
    config = state.config
    app = FastAPI(
        title="Tokentrail",
        version=__version__,
        description="An OpenAI-compatible server that keeps a trail of every answer.",
        # Their pages load scripts from elsewhere: nothing without a network, and others learn of it with one.
        docs_url=None,
        redoc_url=None,
        # A redirect would be to wherever the client's Host header says.
        redirect_slashes=False,
    )
    app.include_router(anthropic.create_router(state))  # before OpenAI's: some paths are the same
    app.include_router(create_router(state))
    app.include_router(responses.create_router(state))
    app.include_router(tokenizing.create_router(state))
    app.include_router(about.create_router(state, admin_api=admin.is_offered(state)))
    app.include_router(watching.create_router(state))
    app.include_router(learning.create_router(state))
    app.include_router(batches.create_router(app, state))
    if state.gateway is not None:
        from tokentrail.server import limits

        app.include_router(limits.create_router(state.gateway))
        if state.gateway.settings.ledger is not None:
            from tokentrail.server import usage

            app.include_router(usage.create_router(state.gateway))
        if (routes := admin.create_router(state)) is not None:
            app.include_router(routes)
    shapes = {anthropic.PREFIX: anthropic_shape, **_add_dialects(app, state)}
    app.include_router(_operations(state))
    app.include_router(_journeys(state))
    describe(app, lambda path: shape_of(path, shapes))
    app.add_exception_handler(TokentrailError, on_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    paths = {route.path for route in every_route(app.routes)}
    app.add_middleware(
        Gate,
        keys=state.keys,
        hosts=Hosts(config.allowed_hosts, bound_to=config.host, has_keys=state.keys.required),
        metrics=state.metrics,
        shapes=shapes,
        header_shapes={anthropic.VERSION_HEADER: anthropic_shape},
        log_requests=config.log_requests,
        is_open=wants_page if config.ui else None,
        observer=lambda: state.observer,
        paths=lambda: paths,
    )
    if config.allowed_origins:
        # Outside the gate: a browser must be able to read a refusal too, and its preflight has no key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=["x-request-id", "request-id", "retry-after", *RATE_LIMIT_HEADERS],
        )
    app.add_middleware(RequestIds)
    return app


def _add_dialects(app: FastAPI, state: ServerState) -> dict[str, Shape]:
    """The dialects that can be turned off, and the shapes of their errors by path."""
    shapes: dict[str, Shape] = {}
    if state.config.ollama_api:
        from tokentrail.server import ollama

        app.include_router(ollama.create_router(state))
        shapes["/api/"] = ollama.shape
    if state.config.llama_cpp_api:
        from tokentrail.server.llama_cpp import completion, routes

        app.include_router(routes.create_router(state))
        shapes |= dict.fromkeys(routes.PATHS, completion.shape)
    if state.config.tgi_api:
        from tokentrail.server import tgi

        app.include_router(tgi.create_router(state))
        shapes |= dict.fromkeys(("/generate", "/info", "/"), tgi.shape)
    return shapes


def _operations(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["operations"])
    config = state.config
    page = Page()

    if config.ui:

        @router.get(PREFIX + "{name:path}", include_in_schema=False)
        async def page_file(request: Request, name: str) -> Response:
            return await page.file(request, name)

    @router.get("/", openapi_extra=answers(dict[str, str]))
    async def root(request: Request) -> Response:
        """Where to look; for browsers, which ask for HTML, the page."""
        if config.ui and is_browser(request.scope):
            return await page.index(request)
        paths = {
            "models": "/v1/models",
            "chat": "/v1/chat/completions",
            "responses": "/v1/responses",
            "messages": "/v1/messages",
            "journeys": "/v1/journeys",
            **({"ollama": "/api/chat"} if config.ollama_api else {}),
            **({"llama.cpp": "/completion"} if config.llama_cpp_api else {}),
            **({"tgi": "/generate"} if config.tgi_api else {}),
        }
        operations = {"health": "/health", "metrics": "/metrics", "openapi": "/openapi.json"}
        listed = json_response({"name": "Tokentrail", "version": __version__, **paths, **operations})
        listed.headers["vary"] = "accept"
        return listed

    @router.get("/health", openapi_extra=answers(Health, also={503: Health}))
    async def health(request: Request) -> Response:
        """200 while requests are taken; 503 while starting, shutting down, or without an engine. Needs no key; an
        admin's gets how each target of the routes is doing, too.
        """
        caller: Identity | None = getattr(request.state, "caller", None)
        told = Health(state.health)
        if caller is not None and caller.admin and state.gateway is not None and state.gateway.routing:
            told.targets = state.gateway.routing.targets()
        return json_response(told, 200 if state.health == "ok" else 503)

    @router.get("/health/ready", openapi_extra=answers(Health, also={503: Health}))
    async def ready(request: Request) -> Response:
        """The same, by the name that orchestrators give it."""
        return await health(request)

    @router.get("/health/live", openapi_extra=answers(dict[str, str]))
    async def live() -> Response:
        """200 as long as the server's process is alive, whether or not it takes requests. Needs no key."""
        return json_response({"status": "alive"})

    @router.get("/metrics", openapi_extra=text_answer("text/plain"))
    async def metrics() -> Response:
        """Metrics in Prometheus's text format. Needs no key."""
        # In a thread: the first scrape imports a library, which must not hold up streams.
        loop = asyncio.get_running_loop()
        body, content_type = await loop.run_in_executor(None, state.metrics.render)
        return Response(body, headers={"content-type": content_type})

    return router


def _journeys(state: ServerState) -> APIRouter:
    router = APIRouter(prefix="/v1/journeys", tags=["journeys"])

    @router.get(
        "",
        openapi_extra=answers(JourneyList)
        | query(limit={"type": "integer", "minimum": 1, "maximum": _MOST_LISTED, "default": 20}),
    )
    async def list_journeys(request: Request) -> Response:
        """The newest journeys made with this key, without their steps. `limit`: 1 to 1000, default 20."""
        limit = limit_of(request, _MOST_LISTED)
        return json_response(state.journeys.list(request.state.identity.tenant, limit))

    @router.get("/{id}", openapi_extra=answers(JourneyView))
    async def get_journey(request: Request, id: str) -> Response:
        """What happened to one request, by the id of its answer or the `x-request-id` it was sent with."""
        journey = state.journeys.view(id, request.state.identity.tenant)
        if journey is None:
            raise HTTPError(
                404,
                "There is no journey with this id among those of this key that are still kept.",
                type="invalid_request_error",
                code="journey_not_found",
            )
        return json_response(journey)

    return router
