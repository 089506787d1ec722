"""The load client of `bench serve`, against a server that does what servers do: well and badly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tokentrail.cli.bench.load import Endpoint, LoadClient, RequestFailed

Handler = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A keep-alive HTTP server with one handler; counts connections and keeps the requests' heads."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections = 0
        self.heads: list[str] = []
        self.port = 0

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = next(
                    int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length" in line
                )
                await self.handler(json.loads(await reader.readexactly(length)), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[LoadClient]:
        server = await asyncio.start_server(self.on_connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        client = LoadClient(
            Endpoint.parse(f"http://127.0.0.1:{self.port}", {"authorization": "Bearer k"}), **options
        )
        try:
            yield client
        finally:
            client.close()
            server.close()


HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text_event(text: str) -> bytes:
    return event(id="x", choices=[{"index": 0, "text": text, "logprobs": None, "finish_reason": None}])


DONE = (
    event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})
    + b"data: [DONE]\n\n"
)


async def well(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    for text in ("a", "b", "c"):
        await asyncio.sleep(0.02)
        writer.write(chunk(text_event(text)))
    writer.write(chunk(DONE) + b"0\r\n\r\n")


async def test_times_and_counts() -> None:
    server = Server(well)
    async with server.running() as client:
        answer = await client.stream("completions", {"prompt": "hi"})
        assert (answer.prompt_tokens, answer.output_tokens) == (7, 3)
        assert 0.015 < answer.ttft < 0.2
        assert len(answer.gaps) == 2
        assert all(0.01 < gap < 0.2 for gap in answer.gaps)
        assert answer.tpot == pytest.approx((answer.seconds - answer.ttft) / 2)
        assert answer.seconds >= answer.ttft + sum(answer.gaps)
        assert "POST /v1/completions HTTP/1.1" in server.heads[0]
        assert "Bearer k" in server.heads[0]


async def test_latencies_count_from_when_the_request_was_due() -> None:
    server = Server(well)
    async with server.running() as client:
        answer = await client.stream("completions", {}, started=time.perf_counter() - 5)
        assert 5.0 < answer.ttft < 6.0
        assert answer.seconds > 5.0


async def test_connections_are_kept_and_reused() -> None:
    server = Server(well)
    async with server.running() as client:
        for _ in range(3):
            await client.stream("completions", {})
        assert server.connections == 1
        await asyncio.gather(*(client.stream("completions", {}) for _ in range(4)))
        assert server.connections == 4


async def test_a_kept_connection_that_the_server_closed_is_no_failure() -> None:
    async def answer_and_hang_up(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await well(body, writer)
        await writer.drain()
        writer.close()

    server = Server(answer_and_hang_up)
    async with server.running() as client:
        for _ in range(3):
            assert (await client.stream("completions", {})).output_tokens == 3
        assert server.connections == 3


async def test_an_idle_connection_that_the_server_ends_is_not_used_again() -> None:
    """Its end may be read before it is lost; in between it can no longer send."""
    server = Server(well)
    async with server.running() as client:
        await client.stream("completions", {})
        client._idle[0].eof_received()
        assert (await client.stream("completions", {})).output_tokens == 3
        assert server.connections == 2


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 11, 100])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
async def test_events_cut_anywhere(cut: int, newline: bytes) -> None:
    stream = (text_event("你好") + b": a comment\n\n" + text_event("") + text_event("c") + DONE).replace(
        b"\n", newline
    )

    async def in_pieces(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for start in range(0, len(stream), cut):
            writer.write(chunk(stream[start : start + cut]))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with Server(in_pieces).running() as client:
        answer = await client.stream("completions", {})
        assert (answer.output_tokens, len(answer.gaps)) == (3, 1)


async def test_chat_counts_from_the_first_content() -> None:
    async def chat(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(
            HEAD + chunk(event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]))
        )
        await asyncio.sleep(0.05)
        for content in ("a", "b"):
            writer.write(chunk(event(choices=[{"index": 0, "delta": {"content": content}}])))
        writer.write(
            chunk(event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) + b"data: [DONE]\n\n")
        )
        writer.write(b"0\r\n\r\n")

    async with Server(chat).running() as client:
        answer = await client.stream("chat/completions", {})
        assert answer.ttft > 0.045
        assert answer.output_tokens == 2  # no usage: events counted


def plain(status: str, body: bytes, kind: str = "application/json") -> Handler:
    async def handler(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )

    return handler


def streamed(*events: bytes, end: bytes = b"0\r\n\r\n") -> Handler:
    async def handler(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"".join(chunk(event) for event in events) + end)
        await writer.drain()
        if not end:
            writer.close()

    return handler


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (
            plain("429 Too Many Requests", b'{"error": {"message": "the queue is\\n full", "code": "x"}}'),
            "HTTP 429: the queue is full",
        ),
        (plain("502 Bad Gateway", b"<html>\nno", "text/html"), "HTTP 502: <html>"),
        (plain("500 Oops", b""), "HTTP 500: (empty body)"),
        (plain("404 Not Found", b'{"detail": "Not Found"}'), "HTTP 404"),
        (plain("200 OK", b"{}"), "not streamed"),
        (streamed(text_event("a")), "without [DONE]"),
        (streamed(text_event("a"), end=b""), "closed before"),
        (streamed(b"data: [DONE]\n\n"), "an empty answer"),
        (streamed(text_event("a"), b'data: {"error": {"message": "engine died"}}\n\n'), "engine died"),
        (streamed(b"data: {oops\n\n"), "not as expected"),
        (plain("nonsense", b""), "not valid HTTP"),
    ],
)
async def test_failures_say_why_in_a_line(handler: Handler, reason: str) -> None:
    async with Server(handler).running(timeout=5.0) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.stream("completions", {})
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_timeout_and_no_server() -> None:
    async def never(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await asyncio.sleep(3)

    server = Server(never)
    async with server.running(timeout=0.1) as client:
        with pytest.raises(RequestFailed, match=r"within 0\.1 s"):
            await client.stream("completions", {})
    dead = LoadClient(Endpoint.parse("http://127.0.0.1:9"))
    with pytest.raises(RequestFailed, match=r"can't connect to 127\.0\.0\.1:9"):
        await dead.stream("completions", {})


def test_urls() -> None:
    assert Endpoint.parse("http://h:8000").url == "http://h:8000/v1"
    assert Endpoint.parse("http://h:8000/v1/").url == "http://h:8000/v1"
    assert Endpoint.parse("https://api.example.com/openai").url == "https://api.example.com:443/openai/v1"
    assert Endpoint.parse("localhost:8000").url == "http://localhost:8000/v1"
    assert Endpoint.parse("http://[::1]:8000").url == "http://[::1]:8000/v1"
    for url in ("ftp://h", "http://", "http://h:99999"):
        with pytest.raises(ValueError):
            Endpoint.parse(url)
