"""What every HTTP request passes first: its id, the host it names, its key, a count of its response, a net under its
errors, and a line in the log if it is refused.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokentrail.answer import Identity
from tokentrail.observability import Metrics
from tokentrail.protocol import TokentrailError, Unauthorized
from tokentrail.server.attempts import Attempts
from tokentrail.server.errors import (
    CLIENT_GONE,
    Shape,
    describe,
    error_response,
    log_internal,
    openai_shape,
)
from tokentrail.server.hosts import Hosts
from tokentrail.server.keys import DETAILED_PATHS, OPEN_PATHS, Keys, NoKey
from tokentrail.server.scopes import asks_model, check_endpoint

if TYPE_CHECKING:
    from tokentrail.gateway.observing import Observer

log = logging.getLogger(__name__)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})

# What may be echoed into a header and a log line.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIds:
    """ASGI middleware: every response has an `x-request-id`, the client's own where it sent one. Leaves
    `client_request_id` and `request_id`, which is that or a new one, in the request's state.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = b""
        for name, value in scope["headers"]:
            if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                request_id = value
        state = scope.setdefault("state", {})
        state["client_request_id"] = request_id.decode() or None
        request_id = request_id or f"req_{uuid.uuid4().hex}".encode()
        state["request_id"] = request_id.decode()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.setdefault("headers", [])
                sent = next((value for name, value in headers if name == b"x-request-id"), None)
                if sent is None:
                    headers.append((b"x-request-id", request_id))
                headers.append((b"request-id", sent or request_id))  # Anthropic's name for it
            await send(message)

        await self.app(scope, receive, named)


class Gate:
    """ASGI middleware. Leaves `identity`, `received` and `error_shape` in the request's state; headers that routes
    leave there as `told` are sent.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        hosts: Hosts,
        metrics: Metrics,
        *,
        shapes: Mapping[str, Shape] | None = None,
        header_shapes: Mapping[bytes, Shape] | None = None,
        log_requests: bool = True,
        is_open: Callable[[Scope], bool] | None = None,
        observer: Callable[[], Observer | None] = lambda: None,
        paths: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """How errors look: `header_shapes`, for requests that have a header; `shapes`, by a path or its beginning;
        otherwise as OpenAI's. `is_open`: which requests need no key beside those of `OPEN_PATHS`. `observer`: who is
        told of each request, by now; `paths`: those that there are, by which requests are named that no route has seen.
        """
        self.app = app
        self.shapes = dict(shapes or {})
        self.header_shapes = dict(header_shapes or {})
        self.log_requests = log_requests
        self.is_open = is_open
        self.keys = keys
        self.attempts = Attempts()
        self.hosts = hosts
        self.metrics = metrics
        self.observer = observer
        self.paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = _plain(scope)
        authorization: bytes | None = None
        api_key: bytes | None = None
        host: bytes | None = None
        traceparent: bytes | None = None
        shape = shape_of(scope["path"], self.shapes)
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value
            elif name == b"x-api-key":
                api_key = value
            elif name == b"host":
                host = value
            elif name == b"traceparent":
                traceparent = value
            elif name in self.header_shapes:
                shape = self.header_shapes[name]
        if authorization is None and api_key is not None:
            authorization = b"Bearer " + api_key  # as Anthropic's clients send it
        state = scope.setdefault("state", {})
        state["error_shape"] = shape
        state["received"] = time.time()
        observer = self.observer() if scope["path"] not in OPEN_PATHS else None
        observed = None
        if observer is not None:
            observed = state["handling"] = observer.begin(state["received"], traceparent)
        status = 0
        told_id = b""

        async def counted(message: Message) -> None:
            nonlocal status, told_id
            if message["type"] == "http.response.start":
                status = message["status"]
                told_id = next((v for name, v in message.get("headers", ()) if name == b"x-request-id"), b"")
                if "told" in state:
                    told = [(name.encode(), value.encode()) for name, value in state["told"].items()]
                    message = {**message, "headers": [*message.get("headers", ()), *told]}
            await send(message)

        # A batch's request, which this very process asks. (What comes from outside has no state of its own.)
        inside = "identity" in state
        try:
            if scope["path"] not in OPEN_PATHS and not inside:
                self.hosts.check(host)
                if self.is_open is None or not self.is_open(scope):
                    state["identity"] = self._identify(authorization, scope["client"])
            elif scope["path"] in DETAILED_PATHS and authorization is not None:
                # Whoever asks gets an answer; admins get more of one.
                with contextlib.suppress(TokentrailError):
                    state["caller"] = self._identify(authorization, scope["client"])
            if "identity" in state:
                check_endpoint(state["identity"], scope["method"], scope["path"])
            await self.app(scope, receive, counted)
        except ClientDisconnect:
            pass  # it hung up before its request was whole
        except TokentrailError as error:
            if status:
                raise
            state["problem"] = error
            await error_response(error, shape, state["request_id"])(scope, receive, counted)
        except Exception as error:
            state["failure"] = error
            log_internal(error, f"{_method(scope)} {_route(scope)}")
            if not status:
                await error_response(error, shape, state["request_id"])(scope, receive, counted)
        finally:
            # Those that reach a model have a line of their own.
            problem = state.get("problem")
            if self.log_requests and isinstance(problem, TokentrailError):
                # Not the path itself: it may hold anything.
                known = scope["path"] if scope["path"] in self.paths() else "an unknown path"
                log.info("%s %s: %s", _method(scope), _route(scope, known), describe(problem))
            if observer is not None and observed is not None:
                observer.end(
                    observed,
                    method=_method(scope),
                    route=_route(scope),
                    status=status,
                    request_id=told_id.decode() or state["request_id"],
                    identity=state.get("identity", Identity()),
                    problem=problem or state.get("failure"),
                    question=scope["path"] if "identity" in state and asks_model(scope) else None,
                )
            if not inside:
                self.metrics.http_response(_method(scope), _route(scope), status or CLIENT_GONE)

    def _identify(self, authorization: bytes | None, client: tuple[str, int] | None) -> Identity:
        """Raises `Unauthorized`, and `Overloaded` where too many wrong keys came from."""
        address = "" if client is None else client[0]
        try:
            identity = self.keys.identify(authorization)
        except NoKey:
            raise
        except Unauthorized as error:
            raise self.attempts.wrong(address, error) from None
        if identity.key:
            self.attempts.right(address, identity)
        return identity


def shape_of(path: str, shapes: Mapping[str, Shape]) -> Shape:
    """How errors look at a path. `shapes`: by paths or their beginnings; elsewhere OpenAI's."""
    if (shape := shapes.get(path)) is not None:
        return shape
    for prefix, shape in shapes.items():
        if len(prefix) > 1 and path.startswith(prefix):
            return shape
    return openai_shape


def _plain(scope: Scope) -> Scope:
    """What routes know: HEAD is GET (the web server leaves the body out), and a URL in its absolute form (RFC 9112,
    section 3.2.2) is its path. The web server's own scope stays as it is.
    """
    path: str = scope["path"]
    if path[:7].lower() == "http://" or path[:8].lower() == "https://":
        path = "/" + path.split("/", 3)[3] if path.count("/") > 2 else "/"
        scope = {**scope, "path": path, "raw_path": quote(path).encode()}
    if scope["method"] == "HEAD":
        scope = {**scope, "method": "GET", "head": True}
    return scope


def _method(scope: Scope) -> str:
    """The method, if it is one of HTTP's: a client may make up any number of words."""
    method: str = "HEAD" if scope.get("head") else scope["method"]
    return method if method in _METHODS else "other"


def _route(scope: Scope, unknown: str = "other") -> str:
    """The route's pattern: a bounded number of names, whatever is asked for."""
    return getattr(scope.get("route"), "path", unknown)
