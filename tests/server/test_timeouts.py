"""--request-timeout: what takes too long ends with a clear error, and frees everything."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from raw_http import RawClient, request
from scripted_engine import engine_info
from scripted_server import MODEL, MakeServer, ScriptedServer


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def timeouts(server: ScriptedServer) -> float:
    return server.metric('tokentrail_requests_total{model_name="demo",outcome="timeout"}')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_before_the_first_byte_it_is_504(make_server: MakeServer, stream: bool, path: str) -> None:
    server = make_server(request_timeout=0.4, engine={"first_delay": 30.0})
    body: dict[str, Any] = {"model": MODEL, "stream": stream, "n": 2}
    body |= {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    start = time.monotonic()
    response = server.post(path, body)
    assert 0.3 < time.monotonic() - start < 5
    assert response.status_code == 504
    assert response.headers["x-should-retry"] == "false"
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("request_timeout", "server_error")
    assert "within 0.4 seconds" in error["message"]
    assert not server.engine.running
    assert len(server.engine.aborted) == 2
    assert not server.state.active
    assert timeouts(server) == 1
    assert server.state.journeys.num_live == 0
    # The engine is told, too: it counts the time in its queue.
    assert server.engine.requests[0].deadline == pytest.approx(
        server.engine.requests[0].arrival + 0.4, abs=0.1
    )


def test_a_client_does_not_try_again_what_took_too_long(make_server: MakeServer) -> None:
    server = make_server(request_timeout=0.3, engine={"first_delay": 30.0})
    client = openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=2)
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model=MODEL, prompt="x")
    assert len(server.engine.requests) == 1


def test_a_stream_ends_with_an_event_that_says_so(make_server: MakeServer) -> None:
    server = make_server(request_timeout=0.5, engine={"delay": 0.05, "script": lambda request: [500] * 400})
    body = server.chat(stream=True).text
    events = body.strip().split("\n\n")
    assert len(events) > 3
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "request_timeout"
    assert "[DONE]" not in body
    assert not server.engine.running
    assert timeouts(server) == 1


def test_a_client_that_reads_nothing_holds_nothing_longer(make_server: MakeServer) -> None:
    server = make_server(
        request_timeout=2.0,
        engine={
            "script": lambda request: [500] * 4_000,
            "delay": 0.001,
            "info": engine_info(max_model_len=100_000),
        },
    )
    with RawClient(server.url, window=16_384) as client:
        client.send(
            request(
                "/v1/completions",
                {"model": MODEL, "prompt": "x", "max_tokens": 4_000, "stream": True, "logprobs": 20},
            )
        )
        wait_for(lambda: bool(server.engine.requests))
        wait_for(lambda: not server.engine.running)
    assert len(server.engine.aborted) == 1


def test_vectors_have_the_same_time(make_server: MakeServer) -> None:
    server = make_server(request_timeout=0.3, engine={"first_delay": 30.0})
    response = server.post("/v1/embeddings", {"model": MODEL, "input": "Hi"})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    assert not server.engine.running


def test_what_is_done_in_time_is_left_alone(make_server: MakeServer) -> None:
    server = make_server(request_timeout=0.5)
    assert server.chat().status_code == 200
    time.sleep(0.6)
    assert server.chat(stream=True).text.endswith("[DONE]\n\n")
    assert timeouts(server) == 0
