"""Errors, in the shape of the dialect that is spoken; OpenAI's is `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from tokentrail.protocol import DeadlineExceeded, TokentrailError

log = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status that is counted when the client hung up before there was one (nginx's number for it)."""


RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{kind}"
    for kind in (
        "requests",
        "tokens",
        "tokens-per-day",
        "tokens-per-month",
        "money-per-day",
        "money-per-month",
    )
    for what in ("limit", "remaining", "reset")
)
"""As OpenAI has them, and of quotas in the same way, where a deployment file sets limits."""


class ErrorBody(msgspec.Struct, kw_only=True):
    """What can be said of an error. OpenAI's dialect says all of it but the id."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    request_id: str = ""
    """As its header has it; empty where that is not known."""


class Shaped(NamedTuple):
    """What a shape may give instead of the value alone, where a dialect has another status for an error."""

    value: Any
    status: int


Shape: TypeAlias = Callable[[ErrorBody, int], Any]
"""An error and its HTTP status → the JSON value that says so in a dialect, or `Shaped`."""


def openai_shape(error: ErrorBody, status: int) -> Any:
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": body}


class HTTPError(TokentrailError):
    """An error that only makes sense over HTTP."""

    def __init__(
        self, status: int, message: str, *, type: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.type = type


TOO_LARGE = "request_too_large"


def too_large(limit: int) -> HTTPError:
    return HTTPError(
        413,
        f"The request body is larger than this server takes ({limit} bytes).",
        type="invalid_request_error",
        code=TOO_LARGE,
    )


def unavailable(message: str, code: str) -> HTTPError:
    return HTTPError(503, message, type="server_error", code=code)


def shaped(error: Exception, shape: Shape, request_id: str = "") -> Shaped:
    """What the client is told. Of errors that are not for users' eyes, only that there was one."""
    if isinstance(error, TokentrailError):
        body = ErrorBody(
            message=error.message,
            type=error.type,
            param=error.param,
            code=error.code,
            request_id=request_id,
        )
    else:
        message = "The server had an internal error."
        body = ErrorBody(message=message, type="server_error", request_id=request_id)
    status = status_of(error)
    made = shape(body, status)
    return made if isinstance(made, Shaped) else Shaped(made, status)


def error_json(error: Exception, shape: Shape = openai_shape, request_id: str = "") -> bytes:
    return msgspec.json.encode(shaped(error, shape, request_id).value)


def status_of(error: Exception) -> int:
    return error.status if isinstance(error, TokentrailError) else 500


def error_response(error: Exception, shape: Shape = openai_shape, request_id: str = "") -> Response:
    value, status = shaped(error, shape, request_id)
    headers = {}
    seconds: float | None = getattr(error, "retry_after", 1.0 if status == 503 else None)
    if seconds is not None:
        headers["Retry-After"] = str(max(1, math.ceil(seconds)))
    elif status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, DeadlineExceeded):
        # To OpenAI's and Anthropic's clients: what took all of its time would take it again.
        headers["x-should-retry"] = "false"
    if isinstance(error, TokentrailError):
        headers.update(error.headers)
    if status == 413:
        # The rest of the body is not read.
        headers["Connection"] = "close"
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


async def on_error(request: Request, error: Exception) -> Response:
    request.state.problem = error
    return error_response(error, request.state.error_shape, request.state.request_id)


def describe(error: Exception) -> str:
    """An error for a line of the log: status, code, the parameter at fault. Without its message, which may quote
    what the user wrote.
    """
    if not isinstance(error, TokentrailError):
        return "500"
    if error.status == CLIENT_GONE:
        return "the client left (499)"
    return f"{error.status} {error.code or error.type}" + (
        f" ({printable(error.param)})" if error.param else ""
    )


def printable(text: str) -> str:
    """What a client sent, harmless in a line of the log."""
    cut = text if len(text) <= 100 else f"{text[:100]}…"
    return cut if cut.isprintable() else repr(cut)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, which the framework reports."""
    status = getattr(error, "status_code", 500)
    what = {404: "Unknown request URL", 405: "Not allowed"}.get(status, "Error")
    message = f"{what}: {request.method} {request.url.path}."
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(status)
    response = await on_error(request, HTTPError(status, message, type="invalid_request_error", code=code))
    response.headers.update(getattr(error, "headers", None) or {})
    if status == 405:
        response.headers["allow"] = ", ".join(_methods(request))
    return response


def _methods(request: Request) -> list[str]:
    """What the path may be asked with: the framework tells the first of its routes only. A path that is a route's own
    (`/v1/responses/input_tokens`) is no id of another one (`/v1/responses/{id}`).
    """
    routes = list(every_route(request.app.routes))
    exact = [route for route in routes if route.path == request.url.path]
    return [
        method
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
        if any(
            route.matches({**request.scope, "method": method, "path_params": {}})[0] is Match.FULL
            for route in exact or routes
        )
    ]


def every_route(routes: Iterable[Any]) -> Iterator[Any]:
    """Also those of routers that the framework keeps as they were included among them."""
    for route in routes:
        if isinstance(getattr(route, "path", None), str):
            yield route
        yield from every_route(getattr(getattr(route, "original_router", None), "routes", ()))


def log_internal(error: BaseException, where: str) -> None:
    """A bug. Its message is left out of the log: it may quote what the user wrote."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("internal error in %s: %s\n%s", where, type(error).__name__, frames.rstrip())
