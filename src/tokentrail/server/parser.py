"""h11's parser of HTTP/1.1, with the limits that it lacks."""

from __future__ import annotations

import h11

MOST_HEADER_BYTES = 64 * 1024
"""Of a request's line and headers together."""
MOST_HEADERS = 256
"""vLLM's number."""
_MOST_CHUNKS = 10_000
_SMALLEST_CHUNK = 128
"""Bytes that chunks of a body must have on average, once there are many: each costs as much work as kilobytes of one
that comes whole."""


class Parser(h11.Connection):
    """A server's side of one connection. Keeps what was wrong with what it read."""

    fault: h11.RemoteProtocolError | None = None

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=MOST_HEADER_BYTES)
        self._chunks = self._body_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            event = super().next_event()
            self._check(event)
        except h11.RemoteProtocolError as error:
            self.fault = error
            raise
        return event

    def _check(self, event: object) -> None:
        if isinstance(event, h11.Request):
            self._chunks = self._body_bytes = 0
            if not event.http_version.startswith(b"1."):
                raise h11.RemoteProtocolError("another version of HTTP", error_status_hint=505)
            # h11 looks at the size of what is incomplete only: headers that came in one piece may be longer.
            nbytes = len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
            if len(event.headers) > MOST_HEADERS or nbytes > MOST_HEADER_BYTES:
                raise h11.RemoteProtocolError("too many headers", error_status_hint=431)
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._body_bytes += len(event.data)
            if self._chunks > _MOST_CHUNKS + self._body_bytes // _SMALLEST_CHUNK:
                raise h11.RemoteProtocolError("the body's chunks are too small")
