"""An upstream that answers as a test tells it to, on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

MODEL = "their-model"


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: Any


Play = Callable[[Asked, "Line"], Awaitable[None]]


class Line:
    """One connection, to write to."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.gone = asyncio.Event()
        """The client has closed it."""

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
        await self.writer.drain()

    async def reply(self, status: int, body: Any, kind: str = "application/json", headers: str = "") -> None:
        """A whole response."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} Whatever\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
        await self.send(head.encode() + data)

    async def begin(self, kind: str = "text/event-stream") -> None:
        await self.send(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )

    async def event(self, value: Any) -> None:
        """One event, in a chunk of its own."""
        data = value if isinstance(value, bytes) else b"data: " + json.dumps(value).encode() + b"\n\n"
        await self.send(chunk(data))

    async def end(self, *, done: bool = True) -> None:
        await self.send(*([chunk(b"data: [DONE]\n\n")] if done else []), b"0\r\n\r\n")

    def cut(self) -> None:
        """Close with a reset, in the middle of whatever there is."""
        self.writer.transport.abort()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def piece(
    text: str | None = None, *, index: int = 0, reason: str | None = None, **delta: Any
) -> dict[str, Any]:
    """An event of chat."""
    delta |= {} if text is None else {"content": text}
    return {"choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


async def says(asked: Asked, line: Line) -> None:
    """A short answer."""
    await line.begin()
    for event in (piece(role="assistant"), piece("Hello"), piece(" there"), piece(reason="stop"), USAGE):
        await line.event(event)
    await line.end()


class ScriptedUpstream:
    """`async with`: serves; each request is played by `play`. Lists of models are told by `models`."""

    def __init__(self, play: Play = says, *, owner: str = "someone", context: int | None = None) -> None:
        self.play = play
        self.models: dict[str, Any] = {
            "data": [
                {"id": MODEL, "owned_by": owner, **({} if context is None else {"max_model_len": context})}
            ]
        }
        self.asked: list[Asked] = []
        """But for lists of models."""
        self.lines: list[Line] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ScriptedUpstream:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: asyncio.StreamReaderProtocol(_Reader(), self._serve), "127.0.0.1", 0
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for line in self.lines:
            line.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        line = Line(writer)
        self.lines.append(line)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        line.gone = reader.closed
        try:
            while (asked := await _read(reader)) is not None:
                await self._answer(asked, line)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, asked: Asked, line: Line) -> None:
        if asked.path.endswith("/models"):
            await line.reply(200, self.models)
            return
        self.asked.append(asked)
        await self.play(asked, line)


class _Reader(asyncio.StreamReader):
    """Tells when the client has closed, though nobody reads."""

    def __init__(self) -> None:
        super().__init__(limit=2**20)
        self.closed = asyncio.Event()

    def feed_eof(self) -> None:
        self.closed.set()
        super().feed_eof()

    def set_exception(self, exc: Exception) -> None:
        self.closed.set()
        super().set_exception(exc)


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    data = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, json.loads(data) if data else None)
