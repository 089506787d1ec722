"""Clients that no library lets one be: what is no HTTP, sizes and times, halves of connections, limits."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_http import RawClient, request
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.server import connection
from tokentrail.server.config import ServerConfig
from tokentrail.server.connection import Connection
from tokentrail.server.errors import HTTPError
from tokentrail.server.hosts import Hosts

COMPLETION: Any = {"model": MODEL, "prompt": "Hi", "max_tokens": 100, "seed": 1}


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> float:
    """Seconds until `condition` held."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not happen"
        time.sleep(0.005)
    return time.monotonic() - start


@pytest.fixture(autouse=True)
def _still_serves(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test has sent to the shared server, others are answered."""
    yield
    if "server" in request.fixturenames:
        assert request.getfixturevalue("server").complete(max_tokens=3).status_code == 200


# --- what is no HTTP -------------------------------------------------------------------------------

NO_HTTP = {
    "garbage": (b"\x00\x01\x02\xff\r\n\r\n", 400),
    "TLS": (bytes.fromhex("160301020001000fffffffff") + b"\r\n\r\n", 400),
    "no version": (b"GET /health\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "NUL in the path": (b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "bytes in the path": (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "NUL in a header": (b"GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", 400),
    "space in a header's name": (b"GET / HTTP/1.1\r\nHost: a\r\nX y: 1\r\n\r\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nHost: a\r\nX : 1\r\n\r\n", 400),
    "length is no number": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1x\r\n\r\n", 400),
    "length is negative": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
    "two lengths": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    "unknown coding": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    "long line": (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
    "long header": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    "endless header": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000, 431),
    "many headers": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 257 + b"\r\n", 431),
}


@pytest.mark.parametrize("name", NO_HTTP)
def test_what_is_no_http_is_told_so_in_json(server: ScriptedServer, name: str) -> None:
    data, status = NO_HTTP[name]
    with RawClient(server.url) as client:
        client.send(data)
        reply = client.reply()
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert reply.headers["x-request-id"].startswith("req_")
        assert reply.error["code"] == ("headers_too_large" if status == 431 else "bad_request")
        assert client.ended
    labels = f'method="other",path="other",status="{status}"'
    assert server.metric(f"tokentrail_http_requests_total{{{labels}}}") >= 1


def test_a_server_says_nothing_of_what_was_sent(server: ScriptedServer, caplog: Any) -> None:
    with RawClient(server.url) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization Bearer the-secret\r\n\r\n")
        assert b"secret" not in client.reply().body
    assert "secret" not in caplog.text


def test_a_bad_body_after_good_headers(server: ScriptedServer) -> None:
    head = request("/v1/completions", headers="Transfer-Encoding: chunked\r\n", method="POST")
    for body in (b"zz\r\n", b"5\r\nabcdefgh\r\n", b"1" * 30 + b"\r\n", b"-1\r\n", b"0x5\r\n"):
        with RawClient(server.url) as client:
            client.send(head + body)
            assert client.reply().error["code"] == "bad_request", body
            assert client.ended
    # Each chunk is work: a body of nothing else is refused before it has cost much.
    with RawClient(server.url) as client:
        client.send(head + b"1\r\n \r\n" * 12_000)
        assert "chunks are too small" in client.reply().error["message"]
    body = b"".join(b"%x\r\n%b\r\n" % (256, b" " * 256) for _ in range(12_000))
    with RawClient(server.url) as client:
        client.send(head + body + b"2\r\n{}\r\n0\r\n\r\n")
        assert client.reply().error["param"] == "model"


def test_a_refused_client_that_stays_is_left(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER", 0.5)
    server = make_server()
    head = request("/v1/completions", headers="Transfer-Encoding: chunked\r\n", method="POST")
    for data in (head + b"zz\r\n", b"nonsense\r\n\r\n", request("/v1/completions", b"", length=1 << 30)):
        with RawClient(server.url) as client:
            client.send(data)
            assert client.reply().status in (400, 413)
            wait_for(lambda: not server.web.server_state.connections, 2)
            assert client.ended


def test_methods_and_paths_that_nobody_has(server: ScriptedServer) -> None:
    for method, path, status in [
        ("BREW", "/health", 405),
        ("x" * 1000, "/v1/models", 405),
        ("CONNECT", "localhost:443", 404),
        ("OPTIONS", "*", 404),
        ("TRACE", "/v1/completions", 405),
        ("OPTIONS", "/v1/completions", 405),
        ("GET", "/%00", 404),
        ("GET", "/%ff%fe", 404),
        ("GET", "/" + "../" * 500 + "etc/passwd", 404),
        ("GET", "//v1/models", 404),
        ("GET", "/v1/models/%2e%2e/%2e%2e/x%00y", 404),
        ("GET", "/v1/journeys?limit=%00", 400),
        ("GET", "/?" + "&" * 50_000, 200),
    ]:
        with RawClient(server.url) as client:
            client.send(request(path, method=method, headers="X-Request-Id: mine\r\n"))
            reply = client.reply()
            assert reply.status == status, (method, path)
            assert reply.headers["x-request-id"] == "mine"
            if status == 405:
                assert reply.headers["allow"]


def test_what_a_path_may_be_asked_with(server: ScriptedServer) -> None:
    for path, methods in [
        ("/v1/responses/resp_1", "DELETE, GET"),
        ("/v1/responses/input_tokens", "POST"),  # no response's id
        ("/v1/models", "GET"),
    ]:
        with RawClient(server.url) as client:
            client.send(request(path, method="OPTIONS"))
            assert client.reply().headers["allow"] == methods


def test_head_is_get_without_a_body(server: ScriptedServer) -> None:
    with RawClient(server.url) as client:
        for path in ("/", "/health", "/v1/models", "/metrics", "/openapi.json"):
            client.send(request(path, method="HEAD"))
            assert client.reply(head=True).status == 200
        client.send(request("/v1/completions", method="HEAD"))
        assert client.reply(head=True).status == 405
        client.send(request("/v1/models"))
        assert MODEL.encode() in client.reply().body


def test_the_absolute_form_of_a_url_is_understood(server: ScriptedServer) -> None:
    """RFC 9112, section 3.2.2: a server must."""
    with RawClient(server.url) as client:
        client.send(request(f"{server.url}/v1/completions?x=1", COMPLETION))
        assert client.reply().status == 200
        client.send(request("HTTP://localhost/v1/models"))
        assert client.reply().status == 200
        client.send(request("http://localhost"))
        assert client.reply().status == 200


# --- bodies ----------------------------------------------------------------------------------------


def test_a_large_body_is_refused_while_it_is_being_sent(make_server: MakeServer) -> None:
    """The client writes on, as most do, before it looks for an answer: the answer is there all the same."""
    server = make_server(max_body_bytes=100_000)
    big = b" " * 8_000_000
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(big), big)
    head = request("/v1/completions", headers="Transfer-Encoding: chunked\r\n", method="POST")
    for data in (request("/v1/completions", big), head + chunked):
        with RawClient(server.url) as client:
            client.send(data)
            reply = client.reply()
            assert (reply.status, reply.error["code"]) == (413, "request_too_large")
            assert "100000 bytes" in reply.error["message"]
            assert client.ended


def test_who_asks_before_sending_is_told_without_having_sent(make_server: MakeServer) -> None:
    server = make_server(max_body_bytes=1000)
    expect = "Expect: 100-continue\r\n"
    with RawClient(server.url) as client:
        client.send(request("/v1/completions", b"", headers=expect, length=1001))
        assert client.reply().status == 413
    with RawClient(server.url) as client:
        body = json.dumps(COMPLETION).encode()
        client.send(request("/v1/completions", b"", headers=expect, length=len(body)))
        assert client._until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        client.send(body)
        assert client.reply().status == 200


def test_lengths_that_are_lies(server: ScriptedServer) -> None:
    body = json.dumps(COMPLETION).encode()
    with RawClient(server.url) as client:  # what is left over is no request
        client.send(request("/v1/completions", body + b"\r\n\r\n", length=len(body) - 2))
        assert client.reply().status == 400
        assert client.reply().status == 400
        assert client.ended
    with RawClient(server.url) as client:  # more never comes
        client.send(request("/v1/completions", body, length=len(body) + 10))
        client.finish_sending()
        assert "before the request's body was complete" in client.reply().error["message"]
        assert client.ended
    with RawClient(server.url) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n")
        client.finish_sending()
        assert client.reply().error["code"] == "bad_request"


def test_a_slow_request_is_told_that_it_is_late(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "request_timeout", 0.8)
    server = make_server()
    with RawClient(server.url) as client, RawClient(server.url) as silent:
        client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n")
        start = time.monotonic()
        for _ in range(100):  # each byte comes in time; all of them do not
            if server.state.metrics.http.get(("other", "other", 408)):
                break
            client.send(b"a")
            time.sleep(0.05)
        assert time.monotonic() - start < 4
        assert client.reply().status == 408
        assert silent.ended


def test_a_body_of_a_million_objects_holds_nobody_up(server: ScriptedServer) -> None:
    """Nor does one with as many braces in its text."""
    body: Any = {"model": MODEL, "messages": [{"role": "user"}] * 600_000}
    waits = []
    with RawClient(server.url) as client:
        client.send(request("/v1/chat/completions", body))
        while not client.ready():
            start = time.monotonic()
            assert server.get("/health").status_code == 200
            waits.append(time.monotonic() - start)
        assert "more than 32768 JSON objects" in client.reply().error["message"]
    assert len(waits) > 1
    assert max(waits) < 0.5
    text = '\\"{ \\\\' * 100_000
    too_long = server.chat(messages=[{"role": "user", "content": text}])
    assert too_long.json()["error"]["code"] == "context_length_exceeded"


# --- requests one after the other ------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_turn(server: ScriptedServer) -> None:
    texts = []
    with RawClient(server.url) as client:
        stream = request("/v1/completions", COMPLETION | {"stream": True})
        whole = request("/v1/completions", COMPLETION)
        client.send(stream + whole + request("/v1/none") + stream + whole * 20)
        client.finish_sending()
        for number in range(24):
            reply = client.reply()
            if number == 2:
                assert reply.status == 404
            elif number in (0, 3):
                events = reply.body.decode().split("\n\n")[:-2]
                texts.append("".join(json.loads(event[6:])["choices"][0]["text"] for event in events))
            else:
                texts.append(json.loads(reply.body)["choices"][0]["text"])
        assert client.ended
    assert set(texts) == {TEXT}
    assert len(texts) == 23


def test_a_flood_of_pipelined_requests_is_not_read_ahead(make_server: MakeServer) -> None:
    server = make_server(engine={"first_delay": 1.5})
    with RawClient(server.url) as client:
        client.send(request("/v1/completions", COMPLETION))
        client.socket.settimeout(0.3)
        sent = 0
        try:
            while sent < 100_000_000:
                sent += client.socket.send(request("/health") * 1000)
        except TimeoutError:
            pass
        (held,) = (len(c.conn.trailing_data[0]) for c in server.web.server_state.connections)
        assert held < 1_000_000 < sent


def test_a_connection_that_is_closed_while_a_request_comes(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request sent just when an idle connection ends: answered, or the connection is closed without a byte."""
    monkeypatch.setattr(Connection, "keep_alive", 0.1)
    server = make_server()
    outcomes = set()
    for number in range(40):
        with RawClient(server.url) as client:
            client.send(request("/health"))
            assert client.reply().headers["keep-alive"] == "timeout=75"
            time.sleep(0.09 + 0.0005 * number)
            try:
                client.send(request("/health"))
                outcomes.add(client.reply().status)
            except (EOFError, ConnectionError):
                assert client.buffer == b""
                outcomes.add(0)
    assert outcomes <= {0, 200}


# --- halves of connections -------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first_delay", [0.0, 1.5])
def test_a_client_that_has_no_more_to_say_is_answered(
    make_server: MakeServer, version: str, stream: bool, first_delay: float
) -> None:
    server = make_server(engine={"first_delay": first_delay, "delay": 0.01})
    with RawClient(server.url) as client:
        client.send(request("/v1/completions", COMPLETION | {"stream": stream}, version=version))
        client.finish_sending()
        reply = client.reply()
        assert reply.status == 200
        assert (b"[DONE]" in reply.body) == stream
        assert b"END of it" in reply.body or b"END" in reply.body
        assert client.ended
    assert server.engine.aborted == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pause", [0.1, 1.3])
def test_a_client_that_closes_is_noticed_before_the_first_token(
    make_server: MakeServer, stream: bool, pause: float
) -> None:
    server = make_server(engine={"first_delay": 30.0})
    with RawClient(server.url) as client:
        client.send(request("/v1/completions", COMPLETION | {"stream": stream}))
        wait_for(lambda: len(server.engine.running) == 1)
        time.sleep(pause)
    assert wait_for(lambda: not server.engine.running) < 1.0
    assert wait_for(lambda: not server.web.server_state.connections) < 1.0


def test_a_client_that_resets_is_noticed(make_server: MakeServer) -> None:
    server = make_server(engine={"first_delay": 30.0})
    for stream in (True, False):
        client = RawClient(server.url)
        client.send(request("/v1/completions", COMPLETION | {"stream": stream}))
        wait_for(lambda: len(server.engine.running) == 1)
        client.reset()
        assert wait_for(lambda: not server.engine.running) < 1.0


# --- how many --------------------------------------------------------------------------------------


def test_beyond_the_limit_connections_that_rest_make_room(make_server: MakeServer) -> None:
    server = make_server(max_connections=3, engine={"first_delay": 0.5, "delay": 0.05})
    resting = [RawClient(server.url) for _ in range(3)]
    for client in resting:
        client.send(request("/health"))
        assert client.reply().status == 200
    busy = [RawClient(server.url) for _ in range(3)]
    for client in busy:
        client.send(request("/v1/completions", COMPLETION | {"stream": True}))
    wait_for(lambda: len(server.engine.running) == 3)
    for client in resting:
        assert client.ended
    # Nobody rests any more.
    with RawClient(server.url) as client:
        client.send(request("/health"))
        reply = client.reply()
        assert (reply.status, reply.error["code"]) == (503, "too_many_connections")
        assert int(reply.headers["retry-after"]) >= 1
        assert client.ended
    for client in busy:
        assert client.reply().body.endswith(b"[DONE]\n\n")
    assert server.complete().status_code == 200
    for client in (*resting, *busy):
        client.close()


def test_a_flood_of_connections_keeps_nobody_out_for_long(make_server: MakeServer) -> None:
    server = make_server(max_connections=20)
    flood: list[socket.socket] = []
    ended = threading.Event()

    def run() -> None:
        host, port = server.url.removeprefix("http://").split(":")
        while not ended.wait(0.001):
            flood.append(socket.create_connection((host, int(port)), timeout=5))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        answered = 0
        while answered < 20 or len(flood) <= 20:
            assert server.complete(max_tokens=5).status_code == 200
            answered += 1
    finally:
        ended.set()
        thread.join()
    assert len(server.web.server_state.connections) <= 20 + connection._MOST_REFUSALS
    for one in flood:
        one.close()
    wait_for(lambda: len(server.web.server_state.connections) <= 1)


# --- whose server it is ----------------------------------------------------------------------------


def test_a_server_without_keys_answers_to_names_of_its_own_machine_only(server: ScriptedServer) -> None:
    def status(host: str, path: str = "/v1/models") -> int:
        with RawClient(server.url) as client:
            client.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            reply = client.reply()
            if reply.status != 200:
                assert reply.error["code"] == "host_not_allowed"
            return reply.status

    own = [
        "localhost",
        "LOCALHOST:8000",
        "127.0.0.1:1",
        "[::1]:80",
        "192.168.1.7",
        "box",
        "box.local",
        "a.localhost.",
    ]
    for host in own:
        assert status(host) == 200, host
    for host in (
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "1.2.3.4.5",
    ):
        assert status(host) == 403, host
    assert status("evil.example", "/health") == 200
    with RawClient(server.url) as client:
        client.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert client.reply().status == 200


@pytest.mark.parametrize(
    ("config", "allowed", "refused"),
    [
        ({"api_keys": ("k",)}, ["evil.example"], []),
        ({"host": "0.0.0.0"}, ["evil.example"], []),
        ({"allowed_hosts": ("*",)}, ["evil.example"], []),
        (
            {"allowed_hosts": ("A.example", "*.b.example")},
            ["a.example:80", "x.b.example"],
            ["b.example", "localhost"],
        ),
    ],
)
def test_hosts_that_are_allowed(config: dict[str, Any], allowed: list[str], refused: list[str]) -> None:
    settings = ServerConfig(**config)
    hosts = Hosts(settings.allowed_hosts, bound_to=settings.host, has_keys=bool(settings.api_keys))
    for host in allowed:
        hosts.check(host.encode())
    for host in refused:
        with pytest.raises(HTTPError, match="--allowed-hosts"):
            hosts.check(host.encode())


def test_every_response_has_an_id(make_server: MakeServer) -> None:
    server = make_server(allowed_origins=("http://a.example",), api_keys=("k",))
    preflight = {"origin": "http://a.example", "access-control-request-method": "POST"}
    for mine in ({}, {"x-request-id": "mine-7"}):
        responses = [
            server.http.options(server.url + "/v1/completions", headers=preflight | mine),
            server.get("/v1/models", headers=mine),
            server.get("/health", headers=mine),
            server.get("/v1/nothing", headers=mine | {"authorization": "Bearer k"}),
        ]
        assert [response.status_code for response in responses] == [200, 401, 200, 404]
        ids = {response.headers["x-request-id"] for response in responses}
        assert ids == {"mine-7"} if mine else len(ids) == 4
