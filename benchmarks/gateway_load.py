"""A client for measuring gateways: short answers, over connections that stay open, at little cost of its own."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import urlsplit

_END = b"0\r\n\r\n"


@dataclass
class Load:
    """What came of some seconds of it."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    """Of whole answers, in seconds."""

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def p50(self) -> float:
        return median(self.latencies)


class _Client(asyncio.Protocol):
    """Asks, waits for the whole answer, asks again until the time is up."""

    def __init__(
        self,
        request: bytes,
        until: float,
        answers: int | None,
        latencies: list[float],
        over: asyncio.Future[None],
    ) -> None:
        self._request = request
        self._until = until
        self._left_to_ask = answers
        self._latencies = latencies
        self._over = over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._ask()

    def _ask(self) -> None:
        self._head = b""
        self._left: int | None = None
        self._tail = b""
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self._head[:end].lower(), self._head[end + 4 :]
            self._head = None  # type: ignore[assignment]
            if b" 200 " not in head[:20]:
                self._fail(RuntimeError(f"an answer that is none: {head!r} {data[:300]!r}"))
                return
            _, found, length = head.partition(b"content-length:")
            self._left = int(length.partition(b"\r")[0]) if found else None
        if self._left is not None:
            self._left -= len(data)
            done = self._left <= 0
        else:
            self._tail = (self._tail + data)[-len(_END) :]
            done = self._tail == _END
        if done:
            now = time.perf_counter()
            self._latencies.append(now - self._began)
            if self._left_to_ask is not None:
                self._left_to_ask -= 1
                self._until = now if self._left_to_ask <= 0 else self._until
            if now < self._until:
                self._ask()
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if time.perf_counter() < self._until:
            self._fail(RuntimeError("the connection was closed within the measurement"))
        elif not self._over.done():
            self._over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)
        self._transport.abort()


async def load(
    url: str,
    *,
    model: str,
    clients: int,
    seconds: float,
    stream: bool,
    key: str = "none",
    more: dict[str, Any] | None = None,
    answers: int | None = None,
) -> Load:
    """Keep `clients` busy for some seconds, or until each has so many `answers`. `more`: further parameters of their
    requests.
    """
    parts = urlsplit(url)
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "Say a few words about the weather of the day."}],
            "stream": stream,
            "max_tokens": 32,
            **(more or {}),
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    latencies: list[float] = []
    overs = []
    for _ in range(clients):
        over = loop.create_future()
        overs.append(over)
        await loop.create_connection(
            lambda over=over: _Client(request, began + seconds, answers, latencies, over),  # type: ignore[misc]
            parts.hostname,
            parts.port,
        )
    await asyncio.gather(*overs)
    return Load(time.perf_counter() - began, latencies)
