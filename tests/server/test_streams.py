"""Streams on the wire: their exact shape, clients that hang up, clients that do not read."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from scripted_engine import engine_info
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.server.connection import Connection

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    """Seconds until `condition` held."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not happen"
        time.sleep(0.005)
    return time.monotonic() - start


def connect(server: ScriptedServer, path: str, body: dict[str, Any], *, window: int = 0) -> socket.socket:
    """A raw connection with the request sent. `window`: bytes that it takes in unread; 0: as many as usual."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if window:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    connection.settimeout(20)
    connection.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def test_the_exact_events_of_a_chat_stream(make_server: MakeServer, text_parts: Any) -> None:
    tokens = text_parts.tokenizer.encode("Hi 🦊")
    server = make_server(engine={"script": lambda request: [*tokens, 2]})
    response = server.chat(stream=True, stream_options={"include_usage": True}, seed=4)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    bodies = [json.loads(event.removeprefix("data: ")) for event in events]
    head = {
        "id": bodies[0]["id"],
        "object": "chat.completion.chunk",
        "created": bodies[0]["created"],
        "model": MODEL,
        "system_fingerprint": "fp_scripted",
    }
    assert abs(head["created"] - time.time()) < 60

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**head, "choices": [choice], "usage": None, "seed": 4}

    assert bodies == [
        chunk({"content": "", "role": "assistant", "refusal": None}),
        chunk({"content": "Hi"}),
        chunk({"content": " "}),
        chunk({"content": "🦊"}),
        chunk({}, "stop"),
        {**head, "choices": [], "usage": bodies[-1]["usage"], "seed": 4},
    ]
    assert bodies[-1]["usage"]["completion_tokens"] == len(tokens) + 1


def test_streams_come_as_they_are_made(make_server: MakeServer) -> None:
    server = make_server(engine={"delay": 0.05})
    times = []
    with httpx.stream(
        "POST",
        server.url + "/v1/chat/completions",
        json={"model": MODEL, "messages": MESSAGES, "stream": True},
    ) as response:
        for line in response.iter_lines():
            if line:
                times.append(time.monotonic())
    assert times[-1] - times[0] > 0.05 * 10
    assert len(times) > 15


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_hangs_up_ends_its_request_at_once(
    make_server: MakeServer, path: str, stream: bool, n: int
) -> None:
    server = make_server(engine={"delay": 0.05})
    body: dict[str, Any] = {"model": MODEL, "stream": stream, "n": n, "max_tokens": 100}
    body |= {"messages": MESSAGES} if "chat" in path else {"prompt": "Hi"}
    connection = connect(server, path, body)
    wait_for(lambda: len(server.engine.running) == n and server.engine.deltas_taken > n)
    if stream:
        assert b"200 OK" in connection.recv(65536)
    connection.close()
    assert wait_for(lambda: not server.engine.running) < 0.5
    wait_for(lambda: server.metric('tokentrail_requests_total{model_name="demo",outcome="abort"}') == 1)
    assert len(server.engine.aborted) == n
    assert server.state.active == set()
    assert server.state.journeys.num_live == 0


def test_a_client_that_hangs_up_while_waiting_is_noticed(make_server: MakeServer) -> None:
    """Before the first token, and before the headers are sent."""
    server = make_server(engine={"first_delay": 30.0})
    for stream, pause in ((True, 0.1), (True, 1.3), (False, 0.1)):
        connection = connect(server, "/v1/completions", {"model": MODEL, "prompt": "x", "stream": stream})
        wait_for(lambda: len(server.engine.running) == 1)
        time.sleep(pause)
        connection.close()
        wait_for(lambda: not server.engine.running)


def test_a_client_that_hangs_up_before_its_request_is_whole(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"model": "demo"'
        )
        time.sleep(0.1)
    labels = 'method="POST",path="/v1/completions",status="499"'
    wait_for(lambda: f"tokentrail_http_requests_total{{{labels}}} 1.0" in server.get("/metrics").text)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_headers_do_not_wait_for_a_late_first_token(make_server: MakeServer) -> None:
    server = make_server(engine={"first_delay": 3.0})
    start = time.monotonic()
    with httpx.stream(
        "POST",
        server.url + "/v1/chat/completions",
        json={"model": MODEL, "messages": MESSAGES, "stream": True},
        timeout=20,
    ) as response:
        lines = response.iter_lines()
        assert '"role":"assistant"' in next(lines)
        assert time.monotonic() - start < 2.5
        assert sum(TEXT.count("fox") for _ in lines) > 0


def test_a_client_that_does_not_read_is_not_buffered_for_and_is_ended(make_server: MakeServer) -> None:
    tokens = [500] * 15_000
    info = engine_info(max_model_len=100_000)
    server = make_server(engine={"script": lambda request: tokens, "info": info}, send_timeout=2.0)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 15_000, "stream": True, "logprobs": 5}
    connection = connect(server, "/v1/completions", body, window=16_384)
    wait_for(lambda: any(c.flow.write_paused for c in server.web.server_state.connections))
    # What the sockets hold, and a few events beyond that, is all that is rendered, although the engine goes on.
    taken = server.engine.deltas_taken
    wait_for(lambda: server.engine.deltas_taken > min(taken + 2_000, 14_999))
    (held,) = (c.transport.get_write_buffer_size() for c in server.web.server_state.connections)
    assert held < 256 * 1024
    wait_for(lambda: not server.engine.running, 10)
    wait_for(lambda: not server.state.active)
    # The connection is gone too, not waiting for a last word to be read.
    wait_for(lambda: not server.web.server_state.connections)
    connection.close()
    # Others are served.
    assert server.complete(max_tokens=3).status_code == 200


def test_connections_that_only_wait_are_ended(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "request_timeout", 1.0)
    monkeypatch.setattr(Connection, "keep_alive", 1.0)
    tokens = [500] * 10_000
    info = engine_info(max_model_len=100_000)
    server = make_server(engine={"script": lambda request: tokens, "info": info}, send_timeout=1.0)
    host, port = server.url.removeprefix("http://").split(":")
    silent, trickling, after = (socket.create_connection((host, int(port))) for _ in range(3))
    # One that is answered, and then begins a request that it never completes.
    after.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\n")
    # Two that never read: a response made at once, and the last words of a stream.
    body = {"model": MODEL, "prompt": "x", "max_tokens": 10_000, "logprobs": 5}
    unread = [
        connect(server, "/v1/completions", {**body, "stream": stream}, window=16_384)
        for stream in (False, True)
    ]

    def refused() -> bool:
        try:
            trickling.sendall(b"a")
        except ConnectionError:
            return True
        return False

    wait_for(refused)
    assert silent.recv(1) == b""
    assert after.recv(10_000).startswith(b"HTTP/1.1 200")
    wait_for(lambda: not server.web.server_state.connections, 20)
    assert not server.state.active
    for connection in (silent, trickling, after, *unread):
        connection.close()


def test_a_request_may_take_longer_than_its_headers(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "request_timeout", 0.5)
    server = make_server(engine={"first_delay": 1.2})
    assert server.complete().status_code == 200
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        received = b""
        for number, sent in enumerate(
            [request, request, request, request * 3], 1
        ):  # each wait is one of its own
            connection.sendall(sent)
            while received.count(b'{"status":"ok"}') < number:
                received += connection.recv(10_000)
            time.sleep(0.3)
        while received.count(b'{"status":"ok"}') < 6:  # the last were pipelined
            received += connection.recv(10_000)


def test_slow_readers_get_everything(make_server: MakeServer) -> None:
    tokens = [500, 600] * 4000
    server = make_server(
        engine={"script": lambda request: tokens, "info": engine_info(max_model_len=100_000)},
        send_timeout=3.0,
    )
    body = {"model": MODEL, "prompt": "x", "max_tokens": 8000, "stream": True, "seed": 1}
    connection = connect(server, "/v1/completions", body)
    connection.settimeout(20)
    received = b""
    for _ in range(5):
        time.sleep(0.4)
        received += connection.recv(100_000)
    while b"[DONE]" not in received[-100:]:
        received += connection.recv(1_000_000)
    connection.close()
    whole = server.complete(max_tokens=8000, seed=1).json()["choices"][0]["text"]
    text = "".join(
        json.loads(line[6:])["choices"][0]["text"]
        for line in _dechunked(received).split("\n\n")
        if line.startswith("data: {")
    )
    assert text == whole


def test_a_client_of_http_1_0_gets_the_stream_without_chunks(make_server: MakeServer) -> None:
    server = make_server()
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 100, "stream": True, "seed": 1}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = (
            f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        received = b""
        while data := connection.recv(65536):
            received += data
    events = received.partition(b"\r\n\r\n")[2].decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    text = "".join(json.loads(event[6:])["choices"][0]["text"] for event in events[:-2])
    assert text == server.complete(max_tokens=100, seed=1).json()["choices"][0]["text"]


def _dechunked(response: bytes) -> str:
    _, _, rest = response.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        rest = rest[length + 2 :]
    return body.decode()


def test_a_connection_is_kept_for_further_requests(server: ScriptedServer) -> None:
    with httpx.Client() as client:
        for stream in (True, False, True, False):
            response = client.post(
                server.url + "/v1/chat/completions",
                json={"model": MODEL, "messages": MESSAGES, "stream": stream},
            )
            assert response.status_code == 200
        connections = client._transport._pool.connections  # type: ignore[attr-defined]
        assert len(connections) == 1
