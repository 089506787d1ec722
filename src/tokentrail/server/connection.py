"""Connections that nobody can hold open for nothing: uvicorn's, with an end to every wait for the client."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 60.0
"""Seconds from a connection's start, or the end of its last response, until the next request's headers are
there."""


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


class Connection(H11Protocol):
    """uvicorn ends connections that rest after a response, but waits without end for a first request, for
    headers that trickle, and for a client to read what was sent to it.

    A request whose connection is dropped ends as if its client had hung up.
    """

    send_timeout: ClassVar[float] = 60.0
    """Seconds that a client may leave what was sent unread, once it is more than the buffers hold."""
    request_timeout: ClassVar[float] = REQUEST_TIMEOUT

    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Copied into the state of each request of this connection.
        self.app_state = {**self.app_state, BODY_WRITER: self.body_writer}

    def body_writer(self) -> BodyWriter | None:
        """For the response that has begun; None where its body is not sent in chunks."""
        chunked = self.conn.our_state is h11.SEND_BODY and (self.conn.their_http_version or b"") >= b"1.1"
        return BodyWriter(self) if chunked and self.scope["method"] == "POST" else None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._resumed()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._wait_for_request()
        super().on_response_complete()  # which begins the next request if it is there already
        if not self.cycle.response_complete:
            self._stop_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.send_timeout, self._drop_stalled)

    def resume_writing(self) -> None:
        self._resumed()
        super().resume_writing()

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self.request_timeout, self._drop_idle)

    def _stop_waiting(self) -> None:
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
        else:
            self.transport.close()

    def _drop_stalled(self) -> None:
        log.warning("a client has read nothing for %g s; its connection is dropped", self.send_timeout)
        self.transport.abort()


def connection_class(**limits: Any) -> type[Connection]:
    """`Connection` with other limits (`send_timeout`, `request_timeout`)."""
    return type("Connection", (Connection,), limits)
