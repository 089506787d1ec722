"""Requests whose responses are read whole: lists of models, tokens, embeddings."""

from __future__ import annotations

import asyncio

import msgspec

from tokentrail.answer.remote import failures
from tokentrail.answer.remote.connections import Connection, ConnectionLost, ConnectionPool, ProtocolError
from tokentrail.answer.remote.target import RemoteTarget

_LARGEST = 256 * 1024 * 1024
"""Bytes: 2,048 embeddings of 8,192 values as base64, and as much again."""


class Call(msgspec.Struct):
    request: bytes
    """Its head and body."""
    seconds: float
    """It may take."""


async def call(pool: ConnectionPool, target: RemoteTarget, asked: Call) -> bytes:
    """The body of a response of status 200. Raises what `failures` makes of others."""
    connection = pool.idle()
    while True:
        reused = connection is not None
        if connection is None:
            try:
                connection = await pool.connect()
            except (OSError, asyncio.TimeoutError) as error:
                raise failures.unreachable(target, error) from None
        whole = _Whole()
        try:
            connection.ask(asked.request, whole)
            await asyncio.wait_for(whole.done, asked.seconds)
        except asyncio.TimeoutError:
            raise failures.silent(target, asked.seconds, sent=False) from None
        except ConnectionLost as error:
            if error.unused and reused:
                connection = None
                continue
            raise failures.broken(target, error, sent=False) from None
        except Exception as error:
            raise failures.broken(target, error, sent=False) from None
        finally:
            _let_go(connection, whole)
        if whole.status != 200:
            raise failures.refusal(target, whole.status, whole.headers, bytes(whole.body))
        return bytes(whole.body)


def _let_go(connection: Connection | None, whole: _Whole) -> None:
    if connection is not None and not whole.whole:
        connection.abort()


class _Whole:
    """See `connections.Exchange`."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.whole = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers

    def data(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > _LARGEST:
            raise ProtocolError("an answer without end")

    def settle(self) -> None:
        pass

    def end(self) -> None:
        self.whole = True
        if not self.done.done():
            self.done.set_result(None)

    def failed(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
