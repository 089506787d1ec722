"""One request's answer over HTTP, in whatever dialect it was asked: opened, streamed or sent whole, ended when its
client leaves.

A dialect translates: its request into a `Question`, an answer into a body or a stream of bytes. All else, which is the
same for each, is here.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokentrail.answer import (
    Answer,
    AnswerRequest,
    CallPiece,
    ChatOptions,
    Choice,
    Chunk,
    Handling,
    LineEnds,
    Prompt,
    collect,
)
from tokentrail.protocol import InvalidRequest, SamplingParams, TokentrailError
from tokentrail.server.connection import BODY_WRITER
from tokentrail.server.errors import describe, error_response, log_internal
from tokentrail.server.naming import find_model
from tokentrail.server.state import ClientGone, Guard, ServerState

log = logging.getLogger(__name__)

# A stream's headers wait so long for its first chunk: a request that is refused meanwhile gets a proper
# status.
FIRST_CHUNK_WAIT = 1.0

HEADERS = {
    "cache-control": "no-cache",
    # Tells nginx and its like not to collect the stream before passing it on.
    "x-accel-buffering": "no",
}
"""Of every stream."""


class Question(msgspec.Struct, kw_only=True):
    """What is asked of a model; see `AnswerRequest`, which has the same names."""

    prompts: list[Prompt]
    sampling: SamplingParams
    unset: Collection[str] = ()
    """`max_tokens` is added where it is None."""
    chat: ChatOptions | None = None
    default_max_tokens: int | None = None
    echo: bool = False
    lines: LineEnds | None = None
    truncate_prompt_tokens: int | None = None
    token_ids: bool = False
    tokens_by_id: bool = False
    priority: int = 0
    cache_salt: str | None = None
    user: str | None = None
    names: Mapping[str, str] = {}
    """Names of parameters as they are here → in the dialect: errors speak of the latter."""


class Stream(Protocol):
    """Chunks as bytes of a stream. All but `failed` may be empty."""

    media_type: str

    def start(self) -> bytes: ...

    def chunk(self, chunk: Chunk) -> bytes: ...

    def end(self) -> bytes: ...

    def failed(self, error: Exception) -> bytes:
        """The stream's last words, instead of `end`."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A stream that names who answers."""

    def settled(self) -> None:
        """It began before the first chunk had come: routes may have chosen another one since."""
        ...


class Dialect(Protocol):
    """One request's translation."""

    prefix: str
    """Of the answer's id, with what separates it from the rest."""

    @property
    def model(self) -> str: ...

    @property
    def streaming(self) -> bool: ...

    def question(self) -> Question:
        """Raises `InvalidRequest`."""
        ...

    def whole(self, answer: Answer, choices: list[Choice]) -> Any:
        """The response's body, to be encoded."""
        ...

    def stream(self, answer: Answer) -> Stream: ...


class Generation(Response):
    """Answers one request, streamed or whole. Being the ASGI response, it sees the client hang up."""

    background = None

    def __init__(self, state: ServerState, request: Request, dialect: Dialect) -> None:
        self._state = state
        self._request = request
        self._dialect = dialect
        self._id = dialect.prefix + uuid.uuid4().hex
        self._client_id: str | None = request.state.client_request_id
        # By this header's value, too, the journey is found.
        self._request_id = self._client_id or self._id
        self._id_header = {"x-request-id": self._request_id}
        self._answer: Answer | None = None
        self._stream: Stream | None = None
        """Set once its headers are sent: from then on errors are part of it."""
        self._responding = False
        self._names: Mapping[str, str] = {}
        self._handling = Handling()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        problem: Exception | None = None
        try:
            async with Guard(self._state, self._request):
                answer = self._answer = await self._open()
                try:
                    if self._dialect.streaming:
                        await self._send_stream(answer, send)
                    else:
                        body = msgspec.json.encode(self._dialect.whole(answer, await collect(answer)))
                        headers = {**self._id_header, **answer.headers}
                        response = Response(body, headers=headers, media_type="application/json")
                        self._responding = True
                        await response(scope, receive, send)
                finally:
                    await answer.aclose()
        except ClientGone as error:
            problem = self._request.state.failure = error
        except Exception as error:
            problem = self._request.state.failure = error
            if isinstance(error, InvalidRequest):
                in_words_of(self._names, error)
            if not isinstance(error, TokentrailError):
                log_internal(error, scope["path"])
            if self._stream is not None:
                await send(_body(self._stream.failed(error), more=False))
            elif not self._responding:
                response = error_response(error, self._request.state.error_shape, self._request_id)
                response.headers.update(self._id_header)
                await response(scope, receive, send)
        finally:
            if self._state.config.log_requests:
                self._log(problem, time.perf_counter() - started)

    async def _open(self) -> Answer:
        backend = self._state.backend_for(self._request)
        model = find_model(backend, self._dialect.model).id
        question = self._dialect.question()
        self._names = question.names
        max_tokens = question.sampling.max_tokens
        caller = caller_of(self._request, question.priority, question.cache_salt)
        timeout = self._state.config.request_timeout
        request = AnswerRequest(
            id=self._id,
            prompts=question.prompts,
            sampling=question.sampling,
            unset=[*question.unset, *(["max_tokens"] if max_tokens is None else [])],
            model=model,
            endpoint=self._request.url.path,
            chat=question.chat,
            default_max_tokens=question.default_max_tokens,
            echo=question.echo,
            lines=question.lines,
            truncate_prompt_tokens=question.truncate_prompt_tokens,
            token_ids=question.token_ids,
            tokens_by_id=question.tokens_by_id,
            streamed=self._dialect.streaming,
            user=question.user or "",
            deadline=None if timeout is None else caller["received"] + timeout,
            **caller,
        )
        self._handling = request.handling
        return await backend.open(request)

    async def _send_stream(self, answer: Answer, send: Send) -> None:
        chunks = aiter(answer)
        # Refusals come before the first chunk, and soon: waiting a moment for it gives them their status.
        first = asyncio.ensure_future(anext(chunks, None))
        try:
            await asyncio.wait({first}, timeout=FIRST_CHUNK_WAIT)
            if first.done():
                first.result()
            stream = self._dialect.stream(answer)
            headers = {"content-type": stream.media_type, **HEADERS, **self._id_header, **answer.headers}
            raw = [(k.encode(), v.encode()) for k, v in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            self._stream = stream
            data = stream.start()
            early = not first.done()
            if early:
                await send(_body(data))
                data = b""
            batch = await first
            if early and isinstance(stream, Settling):
                stream.settled()
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
            if data and not self._ends(answer, batch[-1]):
                began = time.monotonic()
                await send(_body(data))
                answer.sent(time.monotonic() - began)
                data = b""
            if take is not None:
                answer.divert(take)
            batch = await anext(chunks, None)
        await send(_body(data + stream.end(), more=False))

    def _ends(self, answer: Answer, chunk: Chunk) -> bool:
        """Whether `chunk` is known to be the answer's last, and so goes with the end of the body."""
        return chunk.finish_reason is not None and answer.num_choices == 1 and not self._handling.ends_late

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


def in_order(text: str, calls: Sequence[CallPiece], shown: int = 0) -> Iterator[str | CallPiece]:
    """Text and calls of a choice, or of one of its chunks, as the model wrote them one after the other. `shown`:
    characters of the text in the chunks before.
    """
    at = 0
    for piece in calls:
        if piece.name is not None:
            # A call that goes on was there before the text of its chunk.
            end = len(text) if piece.before is None else min(max(at, piece.before - shown), len(text))
            if end > at:
                yield text[at:end]
                at = end
        yield piece
    if at < len(text):
        yield text[at:]


def caller_of(request: Request, priority: int, cache_salt: str | None) -> dict[str, Any]:
    """What a backend is told of who asks; the fields of its requests that say so have these names."""
    state = request.state
    return {
        "request_id": state.client_request_id,
        "identity": state.identity,
        "priority": priority + getattr(state, "priority", 0),
        # Keys never share cached prefixes: how fast an answer comes must not tell what others asked.
        "salt": ":".join(filter(None, (state.identity.tenant, cache_salt))),
        "received": state.received,
        "handling": getattr(state, "handling", None) or Handling(),
        "headers": request.headers,
    }


def prompt_ids(answer: Answer, index: int) -> list[int]:
    """The prompt that choice number `index` answers."""
    return answer.prompt_token_ids[index * len(answer.prompt_token_ids) // answer.num_choices]


def in_words_of(names: Mapping[str, str], error: InvalidRequest) -> InvalidRequest:
    """The same error, naming parameters as a dialect does; see `Question.names`."""
    for ours, theirs in names.items():
        name = re.compile(rf"(?<!\w){re.escape(ours)}(?!\w)")
        error.message = name.sub(theirs, error.message)
        error.param = error.param and name.sub(theirs, error.param)
    error.args = (error.message,)
    return error


def _body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}
