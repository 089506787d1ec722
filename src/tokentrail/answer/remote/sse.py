"""Server-sent events as their bytes arrive (WHATWG HTML, "Server-sent events"), without I/O."""

from __future__ import annotations

LARGEST_EVENT = 16 * 1024 * 1024
"""Bytes. An echoed prompt with its log-probabilities has megabytes."""


class EventTooLarge(Exception):
    """An event that does not end."""


class EventReader:
    """Cuts a stream into the data of its events.

    What is no data (comments, ids, names of events) is left out. Lines `error: …`, which llama.cpp's server wrote
    instead of events, count as data.
    """

    __slots__ = ("_buffer", "_data", "_scanned", "_size")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        """So many bytes of the buffer hold no line's end."""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are whole now. Raises `EventTooLarge`."""
        if not self._buffer and not self._data and data.endswith(b"\n\n") and b"\r" not in data:
            # Mostly events come whole, each of one line.
            pieces = data[:-2].split(b"\n\n")
            if all(piece.startswith(b"data: ") and b"\n" not in piece for piece in pieces):
                return [piece[6:] for piece in pieces]
        self._buffer += data
        return self._lines()

    def _lines(self) -> list[bytes]:
        buffer, events, start = self._buffer, [], 0
        while True:
            end = buffer.find(b"\n", self._scanned)
            # A single \r ends a line, too; that it is one shows with the next byte.
            bare = buffer.find(b"\r", self._scanned, end if end >= 0 else len(buffer))
            if bare >= 0 and bare + 1 < len(buffer) and bare + 1 != end:
                end = bare
            if end < 0:
                self._scanned = len(buffer) - (buffer.endswith(b"\r"))
                break
            line = bytes(buffer[start:end])
            self._scanned = start = end + 1
            if line.endswith(b"\r"):
                line = line[:-1]
            if line:
                self._field(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if start:
            del buffer[:start]
            self._scanned -= start
        if len(buffer) + self._size > LARGEST_EVENT:
            raise EventTooLarge
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name not in (b"data", b"error"):
            return
        value = value[1:] if value.startswith(b" ") else value
        if name == b"error":
            value = b'{"error":%b}' % value
        self._data.append(value)
        self._size += len(value)
        if self._size > LARGEST_EVENT:
            raise EventTooLarge
