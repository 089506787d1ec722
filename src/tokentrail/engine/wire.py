"""How the API process and the engine process talk: msgpack messages over one ZeroMQ PAIR socket each, and how
the engine process is told what it is (`Launch`, one message on its standard input).
"""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

from tokentrail.engine.config import EngineConfig
from tokentrail.protocol import EngineMessage, RequestMessage


class Launch(msgspec.Struct, kw_only=True):
    """What an engine process needs to know."""

    config: EngineConfig
    address: str
    """ZeroMQ address where the client listens."""
    parent: int
    """Process id of the client; the engine ends when it is gone."""
    die_with_thread: bool = False
    """The engine was started by the parent's main thread, so the kernel may be asked to kill it with that
    thread.
    """
    runner: str | None = None


encoder = msgspec.msgpack.Encoder()
request_decoder = msgspec.msgpack.Decoder(RequestMessage)
message_decoder = msgspec.msgpack.Decoder(EngineMessage)
_launch_decoder = msgspec.msgpack.Decoder(Launch)
_LENGTH = struct.Struct("<I")


def pack_launch(launch: Launch) -> bytes:
    data = encoder.encode(launch)
    return _LENGTH.pack(len(data)) + data


def read_launch(stream: BinaryIO) -> Launch:
    """Read what `pack_launch` wrote; the stream stays open. Raises EOFError when it ends early."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the parent process ended before it said what to run")
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError("the parent process ended before it said what to run")
    return _launch_decoder.decode(data)
