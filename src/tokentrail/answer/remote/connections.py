"""Connections to one upstream, kept open between requests."""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import time
from collections import deque
from typing import Protocol
from urllib.parse import urlsplit

from tokentrail.answer.remote.http1 import ProtocolError, ResponseParser, ResponseReader
from tokentrail.answer.remote.target import RemoteTarget
from tokentrail.protocol import InvalidRequest, Overloaded

_IDLE = 30.0
"""Seconds after which an unused connection is not trusted any more: something between may have dropped it."""
_MOST_IDLE = 256


class ConnectionLost(Exception):
    """The upstream closed the connection within an exchange."""

    def __init__(self, *, unused: bool) -> None:
        """`unused`: an old connection, on which nothing came for this request; it had been closed already."""
        super().__init__()
        self.unused = unused


class Exchange(ResponseReader, Protocol):
    """Who is told of one request's response. After `end` or `failed` nothing is told any more."""

    def settle(self) -> None:
        """All that has arrived by now has been told."""
        ...

    def failed(self, error: Exception) -> None:
        """`ConnectionLost`, or `ProtocolError`, or what the reader itself raised."""
        ...


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._exchange: Exchange | None = None
        self._draining: asyncio.TimerHandle | None = None
        self.used = False
        """It has served a request before this one."""
        self.idle_since = 0.0

    # --- to whom asks --------------------------------------------------------------------------------

    def ask(self, request: bytes, exchange: Exchange) -> None:
        assert self._transport is not None
        self._parser = ResponseParser(exchange)
        self._exchange = exchange
        self._transport.write(request)

    def release(self, patience: float = 1.0) -> None:
        """All that matters of the response has come: its last bytes are left to the connection, which then serves
        others, or is closed if they do not come within `patience` seconds.
        """
        if self._exchange is None:
            return
        self._exchange = None
        self.resume()
        assert self._parser is not None
        if self._parser.done:
            self._finished()
        else:
            self._draining = asyncio.get_running_loop().call_later(patience, self.abort)

    def abort(self) -> None:
        """Close at once; the upstream sees that nobody waits for its answer."""
        self._exchange = None
        self._pool.lost(self)
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # --- to asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self.abort()  # nobody asked
            return
        exchange = self._exchange
        try:
            parser.feed(data)
            if exchange is not None:
                exchange.settle()
        except Exception as error:
            self.abort()
            if exchange is not None:
                exchange.failed(error)
            return
        if parser.done and self._parser is parser:
            self._exchange = None
            self._finished()

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.lost(self)
        self._transport = None
        if self._draining is not None:
            self._draining.cancel()
        exchange, self._exchange = self._exchange, None
        parser = self._parser
        if exchange is None or parser is None:
            return
        try:
            whole = error is None and parser.eof()
        except Exception as problem:
            exchange.failed(problem)
            return
        if not whole:
            exchange.failed(ConnectionLost(unused=self.used and not parser.started))

    def _finished(self) -> None:
        """The response is whole."""
        parser, self._parser = self._parser, None
        transport = self._transport
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        if transport is None or transport.is_closing():
            return
        if parser is None or not parser.keep_alive or transport.get_write_buffer_size():
            self.abort()
        else:
            self.used = True
            self._pool.give_back(self)


class ConnectionPool:
    """The connections to one upstream. Those that are free are used again, the latest first."""

    def __init__(self, target: RemoteTarget) -> None:
        """Raises `InvalidRequest` for an address that is none, or certificates that cannot be read."""
        self._target = target
        try:
            parts = urlsplit(target.url)
            port = parts.port
        except ValueError:  # brackets without an IPv6 address in them; a port out of range
            parts, port = urlsplit(""), None
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or any(character.isspace() for character in target.url)
            or parts.query
            or parts.fragment
        ):
            raise InvalidRequest(
                f"url must be http://host:port or https://host, not {target.url!r}.", param="url"
            )
        if parts.username is not None or parts.password is not None:
            raise InvalidRequest("url must not hold a name or password: use api_key or headers.", param="url")
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = _tls(target) if parts.scheme == "https" else None
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._connecting = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def busy(self) -> int:
        """Requests that run."""
        return len(self._all) - len(self._idle) + self._connecting

    def idle(self) -> Connection | None:
        """A connection that is free, if there is one."""
        oldest = time.monotonic() - _IDLE
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since < oldest:
                # All others have waited longer.
                for old in (connection, *self._idle):
                    old.abort()
                self._idle.clear()
                return None
            if connection.open:
                return connection
        return None

    async def connect(self, within: float = math.inf) -> Connection:
        """A new connection, `within` so many seconds at most.

        Raises `OSError` (`ssl.SSLError` is one), `asyncio.TimeoutError` or `Overloaded`.
        """
        if self._closed:
            raise OSError("the server is shutting down")
        if self.busy >= self._target.max_connections:
            raise Overloaded(
                f"The upstream of {self._target.name} has {self.busy} requests, as many as it is given at once. "
                "Try again later."
            )
        self._connecting += 1
        try:
            _, connection = await asyncio.wait_for(
                self._connect(), min(within, self._target.timeouts.connect_s)
            )
        finally:
            self._connecting -= 1
        if self._closed:
            connection.abort()
            raise OSError("the server is shutting down")
        self._all.add(connection)
        return connection

    async def _connect(self) -> tuple[asyncio.BaseTransport, Connection]:
        loop = asyncio.get_running_loop()
        return await loop.create_connection(
            lambda: Connection(self),
            self._host,
            self._port,
            ssl=self._tls,
            server_hostname=self._host if self._tls is not None else None,
        )

    def give_back(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= _MOST_IDLE:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """End all connections; whoever waits on one is told that it is lost."""
        self._closed = True
        self._idle.clear()
        for connection in list(self._all):
            if connection._transport is not None:
                connection._transport.abort()


def _tls(target: RemoteTarget) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"ca_file: {target.ca_file!r} cannot be read as certificates in PEM: {error}.", param="ca_file"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    if not target.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif target.ca_file is None and not context.get_ca_certs() and not context.cert_store_stats()["x509_ca"]:
        # A system without certificates of its own, as small containers are.
        with contextlib.suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context


__all__ = ["Connection", "ConnectionLost", "ConnectionPool", "Exchange", "ProtocolError"]
