"""How the API process and the engine process talk: msgpack messages, each behind its length, over one pair of
connected Unix sockets. The engine has its end as standard input. The first message that it gets is its `Launch`.

A write puts a message into the other process's queue and wakes that process: no thread of a messaging library lies
between the two, which matters where the engine's own threads keep every core busy.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

import msgspec

from tokentrail.engine.config import EngineConfig
from tokentrail.protocol import EngineMessage, RequestMessage


class Launch(msgspec.Struct, kw_only=True):
    """What an engine process needs to know."""

    config: EngineConfig
    parent: int
    """Process id of the client; the engine ends when it is gone."""
    die_with_thread: bool = False
    """The engine was started by the parent's main thread, so the kernel may be asked to kill it with that
    thread.
    """
    runner: str | None = None


encoder = msgspec.msgpack.Encoder()
launch_decoder = msgspec.msgpack.Decoder(Launch)
request_decoder = msgspec.msgpack.Decoder(RequestMessage)
message_decoder = msgspec.msgpack.Decoder(EngineMessage)

_LENGTH = struct.Struct("<I")
_RECEIVE = 256 * 1024
"""Bytes read at once at most."""


def frame(message: Launch | RequestMessage | EngineMessage) -> bytearray:
    """`message` as it is written."""
    data = bytearray(_LENGTH.size)
    encoder.encode_into(message, data, _LENGTH.size)
    _LENGTH.pack_into(data, 0, len(data) - _LENGTH.size)
    return data


class FrameReader:
    """Cuts what was read into messages, however it was cut on its way."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[memoryview]:
        """The messages that `data` completes, without their lengths."""
        if self._rest:
            data = self._rest + data
        view = memoryview(data)
        frames = []
        start = 0
        while len(data) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, start)
            end = start + _LENGTH.size + length
            if end > len(data):
                break
            frames.append(view[start + _LENGTH.size : end])
            start = end
        self._rest = data[start:]
        return frames


class Channel:
    """The engine's end, blocking. Raises EOFError when the client is gone.

    A client that does not read for a while stops the engine once the socket is full: a few dozen steps that
    nobody takes. It always reads while it writes, so the two never wait for each other.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = FrameReader()
        self._frames: deque[memoryview] = deque()

    def receive(self, *, wait: bool) -> memoryview | None:
        """The next message; None if there is none yet and `wait` is False."""
        while not self._frames:
            try:
                data = self._socket.recv(_RECEIVE, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError("the client is gone")
            self._frames.extend(self._reader.feed(data))
        return self._frames.popleft()

    def send(self, message: EngineMessage) -> None:
        try:
            self._socket.sendall(frame(message))
        except ConnectionError:
            raise EOFError("the client is gone") from None

    def close(self) -> None:
        self._socket.close()
