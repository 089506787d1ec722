"""Connections that nobody can hold open for nothing: uvicorn's, with an end to every wait for the client, a limit to
their number, and answers in JSON to what is no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable
from typing import Any, ClassVar

import h11
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from tokentrail.observability import Metrics
from tokentrail.protocol import TokentrailError
from tokentrail.server.errors import HTTPError, describe, error_response, unavailable
from tokentrail.server.parser import MOST_HEADER_BYTES, MOST_HEADERS, Parser

log = logging.getLogger(__name__)

# Of uvicorn's words only these: what it warns of comes in any number, and says less than our own line.
_errors = logging.getLogger("uvicorn.error.connection")
_errors.setLevel(logging.ERROR)

REQUEST_TIMEOUT = 60.0
"""Seconds from a connection's start, or a request's first byte, until its headers are there."""
KEEP_ALIVE = 75.0
"""Seconds that a connection may rest between requests: longer than clients and balancers let theirs, so that none
sends a request just when the connection is closed."""
LINGER = 10.0
"""Seconds in which the rest of a refused request is read and thrown away. Closing while it is on its way would have
the client's system forget the answer, unread."""
_MOST_UNSENT = 64 * 1024
_FIRST_PROBE = 0.1
_MOST_REFUSALS = 100
"""Connections above the limit that are told so at a time; others are dropped without a word."""
_DIGITS = 6
"""Zeros that may stand before the size of one chunk: readers allow for sixteen digits at least."""

BODY_WRITER = "body_writer"
"""Key in the state of a request's scope: gives the response's `BodyWriter`, once its headers are sent."""


class BodyWriter:
    """Writes parts of a streamed body at once: no task is woken, and none of the layers of coroutines passed, that
    ASGI's `send` has. Mixes with that, which must begin and end the response.

    A part is a chunk of HTTP/1.1's chunked coding (RFC 9112, section 7.1), as h11 would write it.
    """

    def __init__(self, connection: Connection) -> None:
        self._transport = connection.transport
        self._flow = connection.flow
        self._cycle = connection.cycle

    @property
    def ready(self) -> bool:
        """False when the client reads too slowly or is gone: `send` waits for it, and notices."""
        return not (self._flow.write_paused or self._cycle.disconnected or self._cycle.response_complete)

    def write(self, data: bytes) -> None:
        """Not empty: that would end the body."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class _Transport:
    """A connection's transport, of which the connection decides how it is closed."""

    def __init__(self, real: asyncio.Transport, connection: Connection) -> None:
        self._real = real
        self._connection = connection
        self.write = real.write
        self.close = connection.close

    def is_closing(self) -> bool:
        return self._connection.lingering or self._real.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Connection(H11Protocol):
    """uvicorn ends connections that rest after a response, but waits without end for a first request, for
    headers that trickle, and for a client to read what was sent to it.

    A request whose connection is dropped ends as if its client had hung up. A client that only has no more to say
    (it has shut its side of the connection, a FIN has come) still gets its answer. One that has closed the
    connection sends the same FIN; but it answers what it is sent with a reset, so it is sent something that means
    nothing: an interim response (RFC 9110, section 15.2), or, within a body in chunks, a zero that belongs to the size
    of the next one.
    """

    send_timeout: ClassVar[float] = 60.0
    """Seconds that a client may leave what was sent unread, once it is more than the buffers hold."""
    request_timeout: ClassVar[float] = REQUEST_TIMEOUT
    keep_alive: ClassVar[float] = KEEP_ALIVE
    max_connections: ClassVar[int] = 1_000_000
    """Beyond them, the one that rests longest is closed; where none rests, a new one is refused with 503."""
    metrics: ClassVar[Metrics | None] = None
    """Count the responses that no application has seen."""
    log_requests: ClassVar[bool] = False
    """A line for each of them."""
    resting: ClassVar[dict[Connection, None]] = {}
    """Connections without a request, the longest first."""

    lingering = False
    """Nothing is written any more, and what comes is thrown away."""
    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _probing: asyncio.TimerHandle | None = None
    _begun = True
    """The request that is waited for has begun to arrive."""
    _half_closed = False
    _refused = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = self.parser = Parser()
        self.logger = _errors
        # Copied into the state of each request of this connection.
        self.app_state = {**self.app_state, BODY_WRITER: self.body_writer}

    def body_writer(self) -> BodyWriter | None:
        """For the response that has begun; None where its body is not sent in chunks."""
        return BodyWriter(self) if self._in_chunks and self.scope["method"] == "POST" else None

    @property
    def _in_chunks(self) -> bool:
        return self.conn.our_state is h11.SEND_BODY and (self.conn.their_http_version or b"") >= b"1.1"

    # --- a connection's life -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Transport(transport, self))  # type: ignore[arg-type]
        if self.scheme == "https":
            transport.set_write_buffer_limits(_MOST_UNSENT)  # TLS has half a megabyte otherwise
        self._rest(self.request_timeout)
        if len(self.connections) > self.max_connections + _MOST_REFUSALS:
            transport.abort()
        elif len(self.connections) > self.max_connections and not self._make_room():
            self._refuse(
                unavailable(
                    f"The server has {self.max_connections} connections, as many as it takes (--max-connections).",
                    "too_many_connections",
                )
            )

    def _make_room(self) -> bool:
        """Close the connection that rests longest. False: all others have a request."""
        for connection in self.resting:
            if connection is not self and not connection.transport.is_closing():
                connection.close()
                return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._resumed()
        if self._probing is not None:
            self._probing.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.lingering:
            return
        if not self._begun:
            self._begun = True
            self._rest(self.request_timeout)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and not self.lingering:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        if not self.lingering:
            self._begun = self.cycle.more_body or bool(self.conn.trailing_data[0])
            self._rest(self.request_timeout if self._begun else self.keep_alive)
        super().on_response_complete()  # which begins the next request if it is there already
        if not self.cycle.response_complete:
            self._stop_waiting()
            if self._half_closed:
                self._probe(_FIRST_PROBE, _DIGITS)
        elif self._half_closed:
            self.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. True: it may still read."""
        cycle = self.cycle
        if self.lingering or self.scheme == "https":  # TLS knows no half of a connection
            return False
        if cycle is None or cycle.response_complete:
            if not self.conn.trailing_data[0]:
                return False
            self._half_closed = True
            self._refuse(_bad_request("The connection was closed before the request was complete."))
        elif cycle.more_body:
            self._half_closed = True
            self._refuse(_bad_request("The connection was closed before the request's body was complete."))
        elif not self._half_closed:
            self._half_closed = True
            self._probe(_FIRST_PROBE, _DIGITS)
        return True

    def _probe(self, pause: float, digits: int) -> None:
        """Have a client that is gone say so. The first probe brings a reset, the next one finds it."""
        cycle = self.cycle
        if self.transport.is_closing() or cycle.response_complete:
            return
        if cycle.response_started:
            if not digits:
                return
            digits -= 1
            if self._in_chunks:
                self.transport.write(b"0")
        elif (self.conn.their_http_version or b"") >= b"1.1":
            self.transport.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        self._probing = self.loop.call_later(pause, self._probe, 2 * pause, digits)

    def close(self) -> None:
        """Close, once what was written is sent and the client has had the time to read it."""
        if self.lingering:
            return
        unread = self._refused or (self.cycle is not None and self.cycle.more_body)
        real = self.transport._real  # type: ignore[attr-defined]
        if not unread or self._half_closed or real.is_closing():
            real.close()
            return
        self.lingering = True
        self._unset_keepalive_if_required()
        if real.can_write_eof():
            real.write_eof()
        self.flow.resume_reading()
        self._wait(LINGER, real.abort)

    # --- waits -------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.send_timeout, self._drop_stalled)

    def resume_writing(self) -> None:
        self._resumed()
        super().resume_writing()

    def _rest(self, seconds: float) -> None:
        """No request is there: one must be in so many seconds."""
        self._wait(seconds, self._drop_idle)
        self.resting[self] = None

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(seconds, then)

    def _stop_waiting(self) -> None:
        self.resting.pop(self, None)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _resumed(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _drop_idle(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait for its last response to be read
        elif self.conn.trailing_data[0] and self.conn.their_state is h11.IDLE:
            late = "The request took too long to arrive."
            self._refuse(HTTPError(408, late, type="invalid_request_error"), linger=False)
        else:
            self.transport.close()

    def _drop_stalled(self) -> None:
        log.warning("a client has read nothing for %g s; its connection is dropped", self.send_timeout)
        self.transport.abort()

    # --- what is no request ------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP/1.1, or more than is read."""
        fault = self.parser.fault
        status = 400 if fault is None else fault.error_status_hint
        if status == 431:
            message = f"The request's headers are too large: {MOST_HEADERS} of them, and {MOST_HEADER_BYTES} bytes, "
            message += "are taken at most."
            self._refuse(HTTPError(431, message, type="invalid_request_error", code="headers_too_large"))
            return
        # The rest of h11's words quotes what came, which may be anything.
        words = re.split(r"[:(]", str(fault or msg))[0].strip()
        self._refuse(_bad_request(f"This is not a valid HTTP/1.1 request: {words}.", status))

    def _unsupported_upgrade_warning(self) -> None:
        """The request is answered as if it had not asked for another protocol, as HTTP has it."""

    def _refuse(self, error: TokentrailError, *, linger: bool = True) -> None:
        """Answer in the application's place, and close."""
        if self.transport.is_closing():
            return
        self._refused = linger
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started:
                cycle.keep_alive = False  # the response goes on to its end
                return
            # The application waits for more of the body: to it, the client has hung up.
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.close()  # what is wrong is the unread rest of a request that has its answer
            return
        response: Response = error_response(error)
        headers = [
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"x-request-id", _request_id()),
        ]
        headers = [one for one in headers if one[0] not in (b"connection", b"keep-alive")]
        headers.append((b"connection", b"close"))
        head = h11.Response(
            status_code=error.status, headers=headers, reason=STATUS_PHRASES.get(error.status, b"")
        )
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        if self.metrics is not None:
            self.metrics.http_response("other", "other", error.status)
        if self.log_requests:
            log.info("no request: %s", describe(error))
        self.close()


def _bad_request(message: str, status: int = 400) -> HTTPError:
    return HTTPError(status, message, type="invalid_request_error", code="bad_request")


def _request_id() -> bytes:
    return f"req_{uuid.uuid4().hex}".encode()


def connection_class(**limits: Any) -> type[Connection]:
    """`Connection` with limits of its own (`send_timeout`, `max_connections` …)."""
    return type("Connection", (Connection,), {"resting": {}, **limits})
