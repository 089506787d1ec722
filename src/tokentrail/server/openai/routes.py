"""The routes of OpenAI's dialect."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokentrail.answer import Answer, AnswerRequest, ChatOptions, Choice, Chunk, ModelCard, Prompt, collect
from tokentrail.protocol import SamplingParams, TokentrailError
from tokentrail.server.body import read_body
from tokentrail.server.connection import BODY_WRITER
from tokentrail.server.errors import describe, error_json, error_response, log_internal, model_not_found
from tokentrail.server.openai import chat, completions
from tokentrail.server.openai.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    parse,
)
from tokentrail.server.openai.responses import ModelBody, ModelList
from tokentrail.server.sse import DONE, HEADERS, raw_event
from tokentrail.server.state import ClientGone, Guard, ServerState

log = logging.getLogger(__name__)

# A stream's headers wait so long for its first chunk: a request that is refused meanwhile gets a proper
# status.
FIRST_CHUNK_WAIT = 1.0


class Stream(Protocol):
    """Chunks as events of a stream; any of these may be empty."""

    def start(self) -> bytes: ...

    def chunk(self, chunk: Chunk) -> bytes: ...

    def end(self) -> bytes: ...


class Dialect(Protocol):
    """One request's translation."""

    prefix: str
    """Of the answer's id."""
    default_max_tokens: int | None

    @property
    def body(self) -> GenerationRequest: ...

    def question(self) -> tuple[list[Prompt], SamplingParams]: ...

    def options(self) -> ChatOptions | None: ...

    def whole(self, answer: Answer, choices: list[Choice]) -> Any:
        """The response's body, to be encoded."""
        ...

    def stream(self, answer: Answer) -> Stream: ...


def create_router(state: ServerState) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.post("/chat/completions", openapi_extra=_json_body(ChatCompletionRequest))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation; with `stream`, as server-sent events."""
        body = parse(ChatCompletionRequest, await read_body(request, state.config.max_body_bytes))
        return _Generation(state, request, chat.ChatDialect(body))

    @router.post("/completions", openapi_extra=_json_body(CompletionRequest))
    async def text_completions(request: Request) -> Response:
        """Continue one or several texts or token lists; with `stream`, as server-sent events."""
        body = parse(CompletionRequest, await read_body(request, state.config.max_body_bytes))
        return _Generation(state, request, completions.CompletionDialect(body))

    @router.get("/models")
    async def list_models() -> Response:
        """The models one can ask."""
        return _json(ModelList(data=[_model(card) for card in state.ready_backend().models()]))

    @router.get("/models/{id:path}")
    async def get_model(id: str) -> Response:
        """One model."""
        for card in state.ready_backend().models():
            if card.id == id:
                return _json(_model(card))
        raise model_not_found(id)

    return router


def _json(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def _model(card: ModelCard) -> ModelBody:
    return ModelBody(
        id=card.id,
        created=card.created,
        root=card.root,
        parent=card.parent,
        max_model_len=card.max_model_len,
    )


def _json_body(model: type[GenerationRequest]) -> dict[str, Any]:
    """The request body's schema for the OpenAPI document: bodies are parsed here, not by the framework."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return inline(definitions[node["$ref"].rsplit("/", 1)[1]])
            return {key: inline(value) for key, value in node.items()}
        return [inline(value) for value in node] if isinstance(node, list) else node

    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inline(schema)}}}}


class _Generation(Response):
    """Answers one request, streamed or whole. Being the ASGI response, it sees the client hang up."""

    background = None

    def __init__(self, state: ServerState, request: Request, dialect: Dialect) -> None:
        self._state = state
        self._request = request
        self._dialect = dialect
        self._body = dialect.body
        self._id = f"{dialect.prefix}-{uuid.uuid4().hex}"
        self._client_id: str | None = request.state.client_request_id
        # By this header's value, too, the journey is found.
        self._id_header = {"x-request-id": self._client_id or self._id}
        self._answer: Answer | None = None
        self._streaming = False
        self._responding = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        problem: Exception | None = None
        try:
            async with Guard(self._state, self._request):
                answer = self._answer = await self._open()
                try:
                    if self._body.stream:
                        await self._send_stream(answer, send)
                    else:
                        body = msgspec.json.encode(self._dialect.whole(answer, await collect(answer)))
                        response = Response(body, headers=self._id_header, media_type="application/json")
                        self._responding = True
                        await response(scope, receive, send)
                finally:
                    await answer.aclose()
        except ClientGone as error:
            problem = error
        except Exception as error:
            problem = error
            if not isinstance(error, TokentrailError):
                log_internal(error, scope["path"])
            if self._streaming:
                await send(_body(raw_event(error_json(error)), more=False))
            elif not self._responding:
                response = error_response(error)
                response.headers.update(self._id_header)
                await response(scope, receive, send)
        finally:
            if self._state.config.log_requests:
                self._log(problem, time.perf_counter() - started)

    async def _open(self) -> Answer:
        backend = self._state.ready_backend()
        body = self._body
        if all(card.id != body.model for card in backend.models()):
            raise model_not_found(body.model)
        prompts, sampling = self._dialect.question()
        options = self._dialect.options()
        return await backend.open(
            AnswerRequest(
                id=self._id,
                prompts=prompts,
                sampling=sampling,
                unset=[*body.unset(), *(["max_tokens"] if sampling.max_tokens is None else [])],
                model=body.model,
                endpoint=self._request.url.path,
                chat=options,
                default_max_tokens=self._dialect.default_max_tokens,
                echo=bool(getattr(body, "echo", False)),
                request_id=self._client_id,
                tenant=self._request.state.tenant,
                priority=body.priority or 0,
                # Keys never share cached prefixes: how fast an answer comes must not tell what others asked.
                salt=":".join(filter(None, (self._request.state.tenant, body.cache_salt))),
                received=self._request.state.received,
            )
        )

    async def _send_stream(self, answer: Answer, send: Send) -> None:
        stream = self._dialect.stream(answer)
        chunks = aiter(answer)
        # Refusals come before the first chunk, and soon: waiting a moment for it gives them their status.
        first = asyncio.ensure_future(anext(chunks, None))
        try:
            await asyncio.wait({first}, timeout=FIRST_CHUNK_WAIT)
            if first.done():
                first.result()
            headers = [(k.encode(), v.encode()) for k, v in {**HEADERS, **self._id_header}.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            self._streaming = True
            data = stream.start()
            if not first.done():
                await send(_body(data))
                data = b""
            batch = await first
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait({first})
            if not first.cancelled():
                first.exception()  # if it raised just when this task was cancelled, it has been heard
        take = self._direct(answer, stream)
        while batch is not None:
            for chunk in batch:
                data += stream.chunk(chunk)
            # The last text goes with the end of the body.
            if data and not self._ends(answer, batch[-1]):
                began = time.monotonic()
                await send(_body(data))
                answer.sent(time.monotonic() - began)
                data = b""
            if take is not None:
                answer.divert(take)
            batch = await anext(chunks, None)
        await send(_body(data + stream.end() + DONE, more=False))

    @staticmethod
    def _ends(answer: Answer, chunk: Chunk) -> bool:
        """Whether `chunk` is known to be the answer's last."""
        return answer.num_choices == 1 and chunk.finish_reason is not None

    def _direct(self, answer: Answer, stream: Stream) -> Callable[[Chunk], bool] | None:
        """Writes a chunk to the client as soon as it is made; None where only `send` can."""
        body_writer = self._request.scope["state"].get(BODY_WRITER)
        writer = None if body_writer is None else body_writer()
        if writer is None:
            return None

        def take(chunk: Chunk) -> bool:
            if not writer.ready or self._ends(answer, chunk):
                return False
            if data := stream.chunk(chunk):
                began = time.monotonic()
                writer.write(data)
                answer.sent(time.monotonic() - began)
            return True

        return take

    def _log(self, problem: Exception | None, seconds: float) -> None:
        """One line, without any of the text."""
        outcome = "200" if problem is None else describe(problem)
        if self._answer is None:
            log.info("%s %s: %s", self._id, self._request.url.path, outcome)
            return
        usage = self._answer.usage
        log.info(
            "%s %s: %s, %d prompt tokens (%d cached) → %d tokens in %.2f s",
            self._id,
            self._request.url.path,
            outcome,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            seconds,
        )


def _body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}
