"""Health, metrics, journeys, ids, logs, and the end of a server."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import httpx
import msgspec
import openai
import pytest
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.journey import JourneyList, JourneyView

MESSAGES: Any = [{"role": "user", "content": "the secret question"}]


def health(server: ScriptedServer) -> tuple[int, str]:
    response = server.get("/health")
    return response.status_code, response.json()["status"]


def test_health_is_503_until_ready_and_while_the_engine_is_down(make_server: MakeServer) -> None:
    server = make_server(ready=False)
    assert health(server) == (503, "starting")
    assert server.get("/health/ready").status_code == 503
    assert server.get("/health/live").json() == {"status": "alive"}
    refused = server.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "starting")
    assert refused.headers["retry-after"] == "1"
    assert server.get("/metrics").status_code == 200
    server.loop.call_soon_threadsafe(server.open)
    assert server.chat().status_code == 200
    assert health(server) == (200, "ok")
    server.engine.alive = False
    assert health(server) == (503, "engine down")
    assert server.metric("tokentrail_engine_up") == 0
    # Requests are not refused: the engine's client lets them wait until it is back.
    assert server.chat().status_code == 200
    server.engine.alive = True
    assert health(server) == (200, "ok")
    assert server.get("/health/ready").json() == {"status": "ok"}
    assert server.http.head(server.url + "/health").status_code == 200


def test_metrics_tell_of_requests(make_server: MakeServer) -> None:
    server = make_server()
    server.chat()
    server.complete(max_tokens=2)
    server.chat(temperature=9)
    server.get("/no/such/path/1")
    server.get("/no/such/path/2")
    label = 'model_name="demo"'
    assert server.metric(f'tokentrail_requests_total{{{label},outcome="stop"}}') == 1
    assert server.metric(f'tokentrail_requests_total{{{label},outcome="length"}}') == 1
    for path, status, count in (
        ("/v1/chat/completions", 200, 1),
        ("/v1/chat/completions", 400, 1),
        ("/v1/completions", 200, 1),
    ):
        labels = f'method="POST",path="{path}",status="{status}"'
        assert server.metric(f"tokentrail_http_requests_total{{{labels}}}") == count
    assert server.metric('tokentrail_http_requests_total{method="GET",path="other",status="404"}') == 2
    for word in ("BREW", "PROPFIND", "x" * 1000):
        assert server.http.request(word, server.url + "/health").status_code == 405
    assert server.metric('tokentrail_http_requests_total{method="other",path="/health",status="405"}') == 3
    assert server.metric(f"tokentrail_time_to_first_token_seconds_count{{{label}}}") == 2
    assert server.metric(f"tokentrail_e2e_request_latency_seconds_count{{{label}}}") == 2
    assert server.metric(f"tokentrail_generation_tokens_total{{{label}}}") == len(server.tokens) + 2
    assert server.metric(f"tokentrail_num_requests_in_flight{{{label}}}") == 0


def test_a_journey_can_be_read_by_its_answer_or_request_id(make_server: MakeServer) -> None:
    server = make_server()
    response = server.post(
        "/v1/chat/completions",
        {"model": MODEL, "messages": MESSAGES, "seed": 8},
        **{"x-request-id": "mine-1"},
    )
    assert response.headers["x-request-id"] == "mine-1"
    id = response.json()["id"]
    for name in (id, "mine-1"):
        raw = server.get(f"/v1/journeys/{name}")
        journey = msgspec.json.decode(raw.content, type=JourneyView)
        assert (journey.id, journey.request_id, journey.endpoint) == (id, "mine-1", "/v1/chat/completions")
        assert (journey.status, journey.outcome, journey.seed) == ("finished", "stop", 8)
        assert len(journey.sequences[0].tokens) == journey.completion_tokens == len(server.tokens)
        assert "secret" not in raw.text
        assert "fox" not in raw.text
    assert server.get("/v1/journeys/other").status_code == 404


def test_journeys_are_listed_newest_first(make_server: MakeServer) -> None:
    server = make_server(trail_size=3)
    ids = [server.complete(max_tokens=1).json()["id"] for _ in range(5)]

    def listed(query: str = "") -> JourneyList:
        raw = server.get(f"/v1/journeys{query}").content
        return msgspec.json.decode(raw, type=JourneyList)

    assert [journey.id for journey in listed().data] == ids[:1:-1]
    assert [journey.id for journey in listed("?limit=2").data] == ids[:2:-1]
    assert listed("?limit=2").has_more
    for limit in ("0", "-1", "1001", "x", "", "9" * 50, "1.5", "²"):
        assert server.get("/v1/journeys", params={"limit": limit}).status_code == 400


def test_texts_are_in_journeys_only_when_the_server_keeps_them(make_server: MakeServer) -> None:
    server = make_server(trail_text=True)
    id = server.chat(messages=MESSAGES, logprobs=True, top_logprobs=2).json()["id"]
    journey = msgspec.json.decode(server.get(f"/v1/journeys/{id}").content, type=JourneyView)
    (sequence,) = journey.sequences
    assert sequence.text == TEXT
    assert "the secret question" in (sequence.prompt or "")
    assert [token.id for token in sequence.tokens] == server.tokens
    assert [len(token.top or ()) for token in sequence.tokens] == [2] * len(server.tokens)


def test_request_ids_of_clients_are_echoed_if_they_are_harmless(server: ScriptedServer) -> None:
    for given, kept in (("abc-1.2:3", True), ("a b", False), ("x" * 129, False), ("a<b", False)):
        response = server.post("/v1/completions", {"model": MODEL, "prompt": "x"}, **{"x-request-id": given})
        expected = given if kept else response.json()["id"]
        assert response.headers["x-request-id"] == expected
    assert server.post("/v1/completions", {}).headers["x-request-id"].startswith("req_")


def test_logs_have_a_line_per_request_and_no_text(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(api_keys=("the-secret-key",))
    auth = {"authorization": "Bearer the-secret-key"}
    with caplog.at_level(logging.DEBUG):
        body = {"model": MODEL, "messages": MESSAGES}
        id = server.post("/v1/chat/completions", body, **auth).json()["id"]
        server.post("/v1/chat/completions", body | {"stream": True}, **auth)
        server.post("/v1/chat/completions", body | {"temperature": 9}, **auth)
        server.post("/v1/chat/completions", body | {"messages": "the secret question"}, **auth)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("tokentrail.server")]
    assert any(id in line and "200" in line and f"→ {len(server.tokens)} tokens" in line for line in lines)
    assert any("400" in line for line in lines)
    assert "secret" not in caplog.text
    assert "fox" not in caplog.text


def test_the_openapi_document_describes_the_bodies(server: ScriptedServer) -> None:
    document = server.get("/openapi.json").json()
    chat = document["paths"]["/v1/chat/completions"]["post"]
    schema = chat["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "messages"} <= set(schema["required"])
    assert {"temperature", "top_k", "logit_bias", "stream_options"} <= set(schema["properties"])
    assert "$ref" not in str(schema)
    assert {"/v1/completions", "/v1/models", "/health", "/metrics", "/v1/journeys"} <= set(document["paths"])
    # No page that would load its scripts from elsewhere.
    assert server.get("/docs").status_code == 404


def test_the_root_says_where_to_look(server: ScriptedServer) -> None:
    root = server.get("/").json()
    for path in ("/v1/models", "/health", "/metrics", "/openapi.json"):
        assert path in root.values()
        assert server.get(path).status_code == 200


def test_what_is_refused_has_a_line_that_names_the_parameter(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(api_keys=("the-secret-key",))
    auth = {"authorization": "Bearer the-secret-key"}
    body = {"model": MODEL, "messages": MESSAGES}
    with caplog.at_level(logging.INFO):
        server.post("/v1/chat/completions", body, authorization="Bearer a-secret-guess")
        server.post("/v1/chat/completions", body | {"temperature": 9}, **auth)
        server.post("/v1/chat/completions", body | {"stop": 5}, **auth)
        server.post("/v1/chat/completions", body | {"messages": [{"role": "secret"}]}, **auth)
        server.get("/nowhere%0Ax", headers=auth)
        # Written after the answer; and a server of another test may still tell of a client that left.
        deadline = time.monotonic() + 5
        lines: list[str] = []
        while len(lines) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
            messages = [r.getMessage() for r in caplog.records if r.name.startswith("tokentrail.server")]
            lines = [message for message in messages if ": 4" in message and "499" not in message]
    path = "/v1/chat/completions"
    assert lines[0] == f"POST {path}: 401 invalid_api_key"
    assert lines[1].endswith(f"{path}: 400 invalid_request_error (temperature)")
    assert lines[2] == f"POST {path}: 400 invalid_request_error (stop)"
    assert lines[3].endswith(f"{path}: 400 invalid_request_error (messages[0].role)")
    assert lines[4] == "GET an unknown path: 404 unknown_url"
    assert len(lines) == 5, "one line each"
    assert "secret" not in caplog.text


# --- the end ---------------------------------------------------------------------------------------


def streamed(server: ScriptedServer, result: dict[str, Any]) -> threading.Thread:
    """A chat streamed in a thread; result["text"] grows, result["error"] is what ended it, if anything."""

    def work() -> None:
        try:
            with server.client().chat.completions.create(
                model=MODEL, messages=MESSAGES, stream=True
            ) as stream:
                for chunk in stream:
                    result["text"] = result.get("text", "") + (chunk.choices[0].delta.content or "")
        except openai.APIError as error:
            result["error"] = error

    thread = threading.Thread(target=work)
    thread.start()
    while not result.get("text"):
        time.sleep(0.01)
    return thread


def test_draining_lets_streams_finish_and_refuses_new_ones(make_server: MakeServer) -> None:
    server = make_server(engine={"delay": 0.05})
    result: dict[str, Any] = {}
    thread = streamed(server, result)
    draining = asyncio.run_coroutine_threadsafe(server.state.drain(20), server.loop)
    time.sleep(0.1)
    assert health(server) == (503, "shutting down")
    refused = server.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert not draining.done()
    thread.join()
    assert result == {"text": TEXT}
    draining.result(1)


def test_draining_ends_what_takes_too_long_with_a_clear_word(make_server: MakeServer) -> None:
    server = make_server(engine={"delay": 0.5})
    result: dict[str, Any] = {}
    thread = streamed(server, result)
    other: dict[str, httpx.Response] = {}
    whole = threading.Thread(target=lambda: other.update(response=server.chat()))
    whole.start()
    while len(server.engine.running) < 2:
        time.sleep(0.01)
    start = time.monotonic()
    server.call(server.state.drain(0.3))
    assert time.monotonic() - start < 2
    thread.join()
    whole.join()
    assert "shutting down" in str(result["error"])
    assert other["response"].status_code == 503
    assert other["response"].json()["error"]["code"] == "shutting_down"
    assert server.engine.running == set()


def test_a_server_with_idle_connections_ends_promptly(make_server: MakeServer) -> None:
    server = make_server()
    with httpx.Client() as client:
        client.get(server.url + "/health")
        start = time.monotonic()
        server.close()
        assert time.monotonic() - start < 2
