"""A server before another one: what clients get is what they would get from that one, in every dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from remote_server import RemoteServer
from scripted_server import MODEL, TEXT, ScriptedServer

from tokentrail.answer.parts import TextParts
from tokentrail.protocol import TokentrailError

MESSAGES = [{"role": "user", "content": "Hi"}]
KEY = "sk-of-the-upstream"


@pytest.fixture(scope="module")
def remote(text_parts: TextParts, server: ScriptedServer) -> Iterator[RemoteServer]:
    """Before `server`."""
    running = RemoteServer(text_parts, server.url)
    yield running
    running.close()


_SAME: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stop": ["fox", "lazy"], "max_tokens": 30}),
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 3, "max_tokens": 5, "temperature": 0.5}),
    ("/v1/chat/completions", {"messages": MESSAGES, "return_token_ids": True}),
    ("/v1/chat/completions", {"messages": MESSAGES, "prompt_logprobs": 2, "max_tokens": 2}),
    (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "logprobs": True,
            "top_logprobs": 2,
            "return_tokens_as_token_ids": True,
            "return_token_ids": True,
        },
    ),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/v1/completions", {"prompt": ["Hi", "You there"], "n": 2, "max_tokens": 9}),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 20, "stop": "dog"}),
    ("/v1/completions", {"prompt": "Hi 🦊", "echo": True, "logprobs": 2, "max_tokens": 50}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "add_special_tokens": False}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 100}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 100, "stop_sequences": ["jumps"]}),
    ("/v1/responses", {"input": "Hi"}),
    ("/api/chat", {"messages": MESSAGES}),
    ("/api/generate", {"prompt": "Hi", "options": {"num_predict": 8}}),
    ("/completion", {"prompt": "Hi", "n_predict": 12}),
    ("/generate", {"inputs": "Hi", "parameters": {"max_new_tokens": 12}}),
    ("/v1/embeddings", {"input": ["Hi", "You there"]}),
    ("/v1/embeddings", {"input": [1, 2, 3], "dimensions": 2, "encoding_format": "base64"}),
]


@pytest.mark.parametrize(("path", "fields"), _SAME)
def test_the_answer_is_the_upstreams(
    server: ScriptedServer, remote: RemoteServer, path: str, fields: dict[str, Any]
) -> None:
    body = {"model": MODEL, "seed": 7, **fields}
    if path == "/v1/messages":
        del body["seed"]
    if path.startswith("/api/"):
        body |= {"stream": False}
    if "seed" not in body:
        body["temperature"] = 0
    direct, through = server.post(path, body), remote.post(path, body)
    assert direct.status_code == through.status_code == 200, through.text
    assert plain(through.json()) == plain(direct.json())


@pytest.mark.parametrize(
    ("path", "fields"),
    [one for one in _SAME if one[0].startswith("/v1/c") and "prompt_logprobs" not in one[1]],
)
def test_the_stream_is_the_upstreams(
    server: ScriptedServer, remote: RemoteServer, path: str, fields: dict[str, Any]
) -> None:
    body = {"model": MODEL, "seed": 7, "stream": True, "stream_options": {"include_usage": True}, **fields}
    direct, through = server.post(path, body), remote.post(path, body)
    assert direct.status_code == through.status_code == 200, through.text
    assert joined(through.text) == joined(direct.text)


# Of every answer its own, or times.
_OWN = ("id", "created", "created_at", "completed_at", "seed", "timings", "request_id")


def plain(value: Any) -> Any:
    """Without what differs between two answers to the same question."""
    if isinstance(value, dict):
        return {
            name: plain(one)
            for name, one in value.items()
            if name not in _OWN and not name.endswith(("duration", "_id"))
        }
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


def joined(stream: str) -> Any:
    """A stream's choices, each joined, and its last usage: how it was cut is no part of the promise."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    events = [line.removeprefix("data: ") for line in stream.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    for event in map(json.loads, events):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            kept = choices.setdefault(
                choice["index"], {"text": "", "logprobs": [], "ids": [], "prompt": None}
            )
            kept["text"] += (choice.get("delta", {}).get("content") or "") + choice.get("text", "")
            logprobs = choice.get("logprobs") or {}
            for name in sorted(logprobs):
                kept["logprobs"] += [(name, json.dumps(one)) for one in logprobs[name] or ()]
            kept["ids"] += choice.get("token_ids") or []
            kept["prompt"] = choice.get("prompt_token_ids") or event.get("prompt_token_ids") or kept["prompt"]
            for name in ("finish_reason", "stop_reason"):
                kept[name] = choice.get(name) or kept.get(name)
    for kept in choices.values():
        kept["logprobs"].sort(key=lambda one: one[0])
    return choices, usage


def test_what_is_asked_beside_answers(server: ScriptedServer, remote: RemoteServer) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/tokenize", {"model": MODEL, "prompt": "Hi there"}),
        ("/tokenize", {"model": MODEL, "messages": MESSAGES}),
        ("/tokenize", {"content": "<|im_start|>Hi", "parse_special": False}),
        ("/detokenize", {"model": MODEL, "tokens": [28120, 665]}),
        ("/apply-template", {"messages": MESSAGES}),
        ("/v1/messages/count_tokens", {"model": MODEL, "messages": MESSAGES}),
    ]
    for path, body in asked:
        direct, through = server.post(path, body), remote.post(path, body)
        assert through.status_code == direct.status_code == 200, (path, through.text)
        assert through.json() == direct.json(), path
    [model] = remote.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == (MODEL, 512)
    for path in ("/api/tags", "/props", "/info", "/api/show", "/slots", "/metrics"):
        method = remote.post(path, {"model": MODEL}) if path == "/api/show" else remote.get(path)
        assert method.status_code == 200, (path, method.text)
    text = remote.post("/tokenize", {"prompt": "x", "return_token_strs": True})
    assert text.status_code == 400
    assert "not told for the model" in text.json()["error"]["message"]


def test_refusals_come_in_the_dialects_own_shape(remote: RemoteServer) -> None:
    refused = remote.chat(messages=[{"role": "user", "content": "long " * 2000}])
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    streamed = remote.chat(stream=True, max_tokens=100_000)
    assert streamed.status_code == 400
    assert streamed.json()["error"]["param"] == "max_tokens"
    unknown = remote.post("/v1/messages", {"model": "x", "max_tokens": 5, "messages": MESSAGES})
    assert unknown.status_code == 404
    assert unknown.json()["error"]["type"] == "not_found_error"


def test_openais_client_through_two_servers(remote: RemoteServer) -> None:
    client = remote.client()
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 35


def test_the_answers_trail_tells_who_made_it(remote: RemoteServer) -> None:
    id = remote.chat().json()["id"]
    journey = remote.get(f"/v1/journeys/{id}").json()
    assert journey["served_by"] == MODEL
    assert journey["completion_tokens"] == 35
    assert journey["stages"]["total"] >= journey["stages"]["first_token"] > 0
    assert [event["event"] for event in journey["events"]] == [
        "received",
        "queued",
        "first_token",
        "finished",
    ]


def test_wrong_keys_are_the_servers_fault_and_are_not_told(text_parts: TextParts) -> None:
    upstream = ScriptedServer(text_parts, {"api_keys": ("right",)}, {}, True)
    try:
        target = {"api_key": KEY, "kind": "tokentrail", "context_length": 512}
        remote = RemoteServer(text_parts, upstream.url, target)
        try:
            for stream in (False, True):
                answer = remote.chat(stream=stream)
                assert answer.status_code == 502
                assert answer.json()["error"]["code"] == "upstream_refused"
                assert KEY not in answer.text
            assert (
                'tokentrail_upstream_failures_total{reason="refused",target="demo"} 2.0'
                in remote.get("/metrics").text
            )
        finally:
            remote.close()
    finally:
        upstream.close()


def test_an_upstream_that_breaks_off_ends_the_stream_with_an_error(text_parts: TextParts) -> None:
    failing = {"error": TokentrailError("broke"), "error_after": 3}
    upstream = ScriptedServer(text_parts, {}, failing, True)
    try:
        remote = RemoteServer(text_parts, upstream.url)
        try:
            answer = remote.chat(stream=True)
            assert answer.status_code == 200
            events = re.findall(r"data: (.*)", answer.text)
            error = json.loads(events[-1])["error"]
            assert error["code"] == "upstream_failed"
            assert "broke" in error["message"]
            whole = remote.chat()
            assert (whole.status_code, whole.json()["error"]["code"]) == (502, "upstream_failed")
            stream: Any = remote.client().chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            with pytest.raises(openai.APIError):
                list(stream)
        finally:
            remote.close()
    finally:
        upstream.close()
