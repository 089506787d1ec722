"""A load client for OpenAI-compatible servers that costs little: it often shares the server's cores.

HTTP/1.1 by h11 on a bare asyncio protocol. While the answer streams, what arrives is only stamped with its time;
it is read, HTTP and JSON, when the answer is over.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import h11
import msgspec

# So that a stream's last event is seen however it was cut on its way.
_LAST_BYTES = 64

CLOSED = "the connection was closed before the answer's end"


class RequestFailed(Exception):
    """A request that did not end as it should; the message says why, in a line."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        if self.text:
            return True
        return self.delta is not None and bool(
            self.delta.content or self.delta.reasoning_content or self.delta.reasoning
        )


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    """What the client wants to know of one server-sent event; all else is skipped over."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


@dataclass
class Answer:
    """One streamed answer, with times in seconds."""

    started: float
    """When the request was meant to be sent (`time.perf_counter()`)."""
    ended: float
    ttft: float
    """From `started` to the first event that brings text."""
    gaps: list[float]
    """Between one event that brings text and the next: the inter-token latencies."""
    prompt_tokens: int
    output_tokens: int

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first."""
        return (self.seconds - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True)
class Endpoint:
    """Where requests go."""

    scheme: str
    host: str
    port: int
    base_path: str
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str, headers: Mapping[str, str] | None = None) -> Endpoint:
        """From a base URL, with or without a closing `/v1`. Raises ValueError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http(s) address such as http://127.0.0.1:8000")
        path = parts.path.rstrip("/")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port,
            base_path=path if path.endswith("/v1") else f"{path}/v1",
            headers=tuple((headers or {}).items()),
        )

    @property
    def url(self) -> str:
        """Base URL, ending in /v1."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base_path}"


class _Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, used for one request at a time."""

    def __init__(self) -> None:
        self.http = h11.Connection(h11.CLIENT)
        self.transport: asyncio.Transport | None = None
        self.lost: Exception | None = None
        self.closed = False
        self._done: asyncio.Future[None] | None = None
        self.begin()

    def begin(self) -> None:
        self._unread: list[tuple[float, bytes]] = []
        self._tail = b""
        self._open = False
        self.status = 0
        self.streamed = False
        self.body = bytearray()
        self.events: list[tuple[float, bytes]] = []
        self.answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class

    async def exchange(self, target: str, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send a request and wait for the end of its response."""
        assert self.transport is not None
        self.begin()
        self._done = asyncio.get_running_loop().create_future()
        request = h11.Request(method="POST", target=target, headers=headers)
        parts = [
            self.http.send(request),
            self.http.send(h11.Data(data=body)),
            self.http.send(h11.EndOfMessage()),
        ]
        self.transport.write(b"".join(part for part in parts if part))
        await self._done

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._unread.append((now, data))
        if self._open:
            # Nothing needs to be known before the answer's end, which one of these announces. Where neither is
            # right, the connection's end is the answer's.
            self._tail = (self._tail + data)[-_LAST_BYTES:]
            if not self._tail.endswith(b"0\r\n\r\n") and b"[DONE]" not in self._tail:
                return
        self._read()

    def _read(self) -> None:
        """Read what has arrived."""
        unread, self._unread = self._unread, []
        try:
            for now, data in unread:
                self.http.receive_data(data)
                if not self._read_events(now):
                    return
        except h11.RemoteProtocolError as error:
            self._finish(RequestFailed(f"not valid HTTP: {error}" if unread[-1][1] else CLOSED))

    def _read_events(self, now: float) -> bool:
        """False when the response is over."""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return True
            if isinstance(event, h11.Data):
                self._take(bytes(event.data), now)
            elif isinstance(event, h11.Response):
                self.answered = True
                self.status = event.status_code
                headers = dict(event.headers)
                kind = headers.get(b"content-type", b"")
                self.streamed = event.status_code == 200 and kind.startswith(b"text/event-stream")
                self._open = self.streamed and b"content-length" not in headers
            elif isinstance(event, h11.EndOfMessage):
                self._finish(None)
                return False
            elif isinstance(event, h11.ConnectionClosed):
                return False

    def _take(self, data: bytes, now: float) -> None:
        self.body += data
        if not self.streamed:
            return
        # Events end with an empty line. The common case is one whole event a piece.
        if b"\r" in self.body:
            self.body = bytearray(bytes(self.body).replace(b"\r\n", b"\n"))
        if (end := self.body.rfind(b"\n\n")) < 0:
            return
        for text in bytes(self.body[:end]).split(b"\n\n"):
            if text:
                self.events.append((now, text))
        del self.body[: end + 2]

    def eof_received(self) -> None:
        # Ends a body without a stated length; in all other cases h11 finds it too short.
        self._unread.append((time.perf_counter(), b""))
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._read()  # an error in the stream is a better reason
        self._finish(RequestFailed(CLOSED))

    def _finish(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    def reusable(self) -> bool:
        """Ready for another request? Takes the protocol to its next cycle."""
        if self.closed or self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


@dataclass
class LoadClient:
    """Sends streamed completion requests, keeping connections open between them."""

    endpoint: Endpoint
    timeout: float = 600.0
    """Seconds for one request, connecting included."""
    insecure: bool = False
    """Do not check the server's certificate."""
    _idle: list[_Connection] = field(default_factory=list)

    async def _connect(self) -> _Connection:
        context: ssl.SSLContext | None = None
        if self.endpoint.scheme == "https":
            context = ssl.create_default_context()
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, self.endpoint.host, self.endpoint.port, ssl=context
            )
        except OSError as error:
            raise RequestFailed(
                f"can't connect to {self.endpoint.host}:{self.endpoint.port}: {error}"
            ) from None
        return connection

    async def stream(self, path: str, body: Mapping[str, Any], started: float | None = None) -> Answer:
        """POST `body` to `path` (`completions`, `chat/completions`) and time the streamed answer.

        `started`: when the request should have been sent, if that was before now; latencies count from then.
        Raises RequestFailed.
        """
        began = time.perf_counter() if started is None else started
        try:
            connection = await asyncio.wait_for(self._exchange(path, msgspec.json.encode(body)), self.timeout)
        except asyncio.TimeoutError:
            raise RequestFailed(f"no answer's end within {self.timeout:g} s") from None
        ended = time.perf_counter()
        try:
            return _read_answer(connection, began, ended)
        finally:
            if connection.reusable():
                self._idle.append(connection)
            else:
                connection.close()

    async def _exchange(self, path: str, body: bytes) -> _Connection:
        headers = [
            ("host", f"{self.endpoint.host}:{self.endpoint.port}"),
            ("content-type", "application/json"),
            ("accept", "text/event-stream"),
            ("content-length", str(len(body))),
            *self.endpoint.headers,
        ]
        target = f"{self.endpoint.base_path}/{path}"
        while True:
            connection = None
            while self._idle and connection is None:
                candidate = self._idle.pop()
                # A server that ends an idle connection leaves it unable to send before it is lost.
                usable = not candidate.closed and candidate.http.our_state is h11.IDLE
                connection = candidate if usable else None
            kept = connection is not None
            if connection is None:
                connection = await self._connect()
            try:
                await connection.exchange(target, headers, body)
                return connection
            except RequestFailed:
                connection.close()
                # A server may close a kept connection just as we reuse it: no failure of this request.
                if not (kept and not connection.answered):
                    raise
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _read_answer(connection: _Connection, started: float, ended: float) -> Answer:
    if connection.status != 200:
        raise RequestFailed(f"HTTP {connection.status}: {_error_text(bytes(connection.body))}")
    if not connection.streamed:
        raise RequestFailed("the answer was not streamed (no text/event-stream)")
    arrivals: list[float] = []
    usage: _Usage | None = None
    done = False
    for arrived, text in connection.events:
        for line in text.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                done = True
                continue
            try:
                event = _decode_event(data)
            except msgspec.DecodeError as error:
                raise RequestFailed(f"an event that is not as expected: {error}") from None
            if event.error is not None:
                raise RequestFailed(f"error in the stream: {_error_text(msgspec.json.encode(event))}")
            if event.usage is not None:
                usage = event.usage
            if any(choice.has_text for choice in event.choices):
                arrivals.append(arrived)
    if not done:
        raise RequestFailed("the stream ended without [DONE]")
    if not arrivals and not (usage and usage.completion_tokens):
        raise RequestFailed("an empty answer")
    first = arrivals[0] if arrivals else ended
    return Answer(
        started=started,
        ended=ended,
        ttft=first - started,
        gaps=[after - before for before, after in itertools.pairwise(arrivals)],
        prompt_tokens=usage.prompt_tokens if usage else 0,
        output_tokens=usage.completion_tokens if usage else len(arrivals),
    )


def _error_text(body: bytes) -> str:
    """The message inside an OpenAI-shaped error, or the body's first line."""
    try:
        data = msgspec.json.decode(body)
    except msgspec.DecodeError:
        lines = body.decode("utf-8", "replace").strip().splitlines()
        return lines[0][:200] if lines else "(empty body)"
    if isinstance(data, dict):
        error = data.get("error", data)
        if isinstance(error, dict):
            error = error.get("message", error)
        return " ".join(str(error).split())[:200]
    return str(data)[:200]
