"""HTTP/1.1 responses as bytes arrive (RFC 9112), without I/O: strict, and bounded in all that is kept.

A library's parser would do, but h11, which the web server uses, takes seven times as long for each piece of a stream
(docs/architecture.md, "remote upstreams"). What is not clear here is an error, since a connection that is read wrongly
would give one request's answer to another.
"""

from __future__ import annotations

import re
from typing import Protocol

_LONGEST_HEAD = 64 * 1024
_MOST_INTERIM = 16
"""Responses of status 1xx before the one that counts."""
_LONGEST_SIZE_LINE = 1024
"""Of a chunk, its extensions included."""
_LONGEST_TRAILER = 16 * 1024
_LARGEST_CHUNK_DIGITS = 12
_HEX = b"0123456789abcdefABCDEF"
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n\0]*)?")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ProtocolError(Exception):
    """What came is no HTTP response, or more than any should be. The message says which."""


class ResponseReader(Protocol):
    """Who is told of a response."""

    def head(self, status: int, headers: dict[str, str]) -> None:
        """`headers` by their names in small letters; those given several times are joined by commas."""
        ...

    def data(self, data: bytes) -> None:
        """A piece of its body."""
        ...

    def end(self) -> None: ...


class ResponseParser:
    """Reads one response."""

    __slots__ = ("_buffer", "_interim", "_left", "_reader", "_state", "done", "keep_alive", "started")

    def __init__(self, reader: ResponseReader) -> None:
        self._reader = reader
        self._buffer = b""
        self._state = self._head
        self._left = 0
        """Of the body or of its chunk: bytes to come."""
        self._interim = 0
        self.started = False
        """Something has come."""
        self.done = False
        self.keep_alive = False
        """Once `done`: the connection can be used again."""

    def feed(self, data: bytes) -> None:
        """Raises `ProtocolError`; whatever the reader raises passes through."""
        self.started = True
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        at = 0
        while at < len(data):
            if self.done:
                raise ProtocolError("bytes after the response's end")
            state = self._state
            next_at = state(data, at)
            if next_at < 0:
                self._buffer = data[at:] if at else data
                return
            at = next_at

    def eof(self) -> bool:
        """The connection was closed; returns whether the response is whole."""
        if self.done:
            return True
        if self._state == self._until_close:
            self._end(keep_alive=False)
            return True
        return False

    # Each state reads from `at` on and returns how far it got, or -1 if it needs more.

    def _head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0 or end - at > _LONGEST_HEAD:
            if len(data) - at > _LONGEST_HEAD:
                raise ProtocolError(f"headers of more than {_LONGEST_HEAD // 1024} KiB")
            if not data.startswith(b"HTTP/1."[: len(data) - at], at):
                raise ProtocolError("what came is not HTTP/1.1")
            return -1
        lines = data[at:end].split(b"\r\n")
        match = _STATUS_LINE.fullmatch(lines[0])
        if match is None:
            raise ProtocolError("what came is not HTTP/1.1")
        status = int(match[2])
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if (
                not colon
                or _NAME.fullmatch(name) is None
                or b"\0" in value
                or b"\n" in value
                or b"\r" in value
            ):
                raise ProtocolError("a header that is none")
            key, text = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        if status < 200:
            self._interim += 1
            if status == 101 or self._interim > _MOST_INTERIM:
                raise ProtocolError("interim responses without end" if status != 101 else "an upgrade")
            return end + 4
        self._begin_body(status, headers, int(match[1]))
        self._reader.head(status, headers)
        if not self._left and self._state == self._exactly:
            self._end()
        return end + 4

    def _begin_body(self, status: int, headers: dict[str, str], minor: int) -> None:
        connection = headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (minor == 1 or "keep-alive" in connection)
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None:
            if coding.lower() != "chunked" or minor == 0:
                raise ProtocolError("a transfer coding that is not known")
            if length is not None:
                self.keep_alive = False  # RFC 9112, 6.3
            self._state = self._size
        elif status in (204, 304):
            self._state = self._exactly
        elif length is not None:
            # Given twice alike it counts once.
            values = {value.strip() for value in length.split(",")}
            value = values.pop()
            if values or not value.isascii() or not value.isdigit() or len(value) > 15:
                raise ProtocolError("a length that is none")
            self._left = int(value)
            self._state = self._exactly
        else:
            self.keep_alive = False
            self._state = self._until_close

    def _size(self, data: bytes, at: int) -> int:
        """The line before a chunk."""
        end = data.find(b"\r\n", at)
        if end < 0 or end - at > _LONGEST_SIZE_LINE:
            if len(data) - at > _LONGEST_SIZE_LINE:
                raise ProtocolError("a chunk without a size")
            return -1
        digits = data[at:end]
        if b";" in digits:
            digits = digits.partition(b";")[0].rstrip(b" \t")
        if not digits or len(digits) > _LARGEST_CHUNK_DIGITS or digits.strip(_HEX):
            raise ProtocolError("a chunk without a size")
        self._left = int(digits, 16)
        if not self._left:
            self._state = self._trailer
            return end + 2
        # Mostly a chunk comes whole.
        start, stop = end + 2, end + 2 + self._left
        if len(data) >= stop + 2:
            if data[stop : stop + 2] != b"\r\n":
                raise ProtocolError("a chunk that is longer than its size")
            self._reader.data(data[start:stop])
            return stop + 2
        self._state = self._chunk
        return start

    def _chunk(self, data: bytes, at: int) -> int:
        stop = min(len(data), at + self._left)
        self._left -= stop - at
        if not self._left:
            self._state = self._chunk_end
        self._reader.data(data[at:stop])
        return stop

    def _chunk_end(self, data: bytes, at: int) -> int:
        if len(data) < at + 2:
            return -1
        if data[at : at + 2] != b"\r\n":
            raise ProtocolError("a chunk that is longer than its size")
        self._state = self._size
        return at + 2

    def _trailer(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > _LONGEST_TRAILER:
                raise ProtocolError("headers without end behind the body")
            return -1
        self._left += end - at
        if self._left > _LONGEST_TRAILER:
            raise ProtocolError("headers without end behind the body")
        if end == at:
            self._end()
        return end + 2

    def _exactly(self, data: bytes, at: int) -> int:
        stop = min(len(data), at + self._left)
        self._left -= stop - at
        self._reader.data(data[at:stop])
        if not self._left:
            self._end()
        return stop

    def _until_close(self, data: bytes, at: int) -> int:
        self._reader.data(data[at:])
        return len(data)

    def _end(self, *, keep_alive: bool = True) -> None:
        self.done = True
        self.keep_alive = self.keep_alive and keep_alive
        self._reader.end()
