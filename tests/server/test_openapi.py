"""The OpenAPI document: what it says is what routes take and answer."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openapi_document import closed
from scripted_server import MODEL, ScriptedServer


@pytest.fixture(scope="module")
def document(server: ScriptedServer) -> Any:
    return server.get("/openapi.json").json()


def operation(document: Any, path: str, method: str = "post") -> Any:
    return document["paths"][path][method]


def answer_schema(
    document: Any, path: str, status: int = 200, kind: str = "application/json", method: str = "post"
) -> Any:
    return operation(document, path, method)["responses"][str(status)]["content"][kind]["schema"]


EVERYTHING: dict[str, Any] = {
    "logprobs": True,
    "top_logprobs": 2,
    "n": 2,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "service_tier": "auto",
    "metadata": {"a": "b"},
    "stop_token_ids": [9],
}


def test_answers_hold_nothing_that_is_not_described(document: Any, server: ScriptedServer) -> None:
    for fields in ({}, EVERYTHING):
        found = server.chat(**fields).json()
        jsonschema.validate(found, closed(answer_schema(document, "/v1/chat/completions")))
        more = {**fields, "logprobs": 2, "echo": True, "top_logprobs": None} if fields else {}
        found = server.complete(**more).json()
        jsonschema.validate(found, closed(answer_schema(document, "/v1/completions")))


def test_events_hold_nothing_that_is_not_described(document: Any, server: ScriptedServer) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    for path, ask in (("/v1/chat/completions", server.chat), ("/v1/completions", server.complete)):
        event = answer_schema(document, path, kind="text/event-stream")
        schema = closed(event["properties"]["data"]["anyOf"][1]["contentSchema"])
        lines = [line[6:] for line in ask(**options).text.splitlines() if line.startswith("data: {")]
        assert len(lines) > 10
        for line in lines:
            jsonschema.validate(json.loads(line), schema)


def test_refusals_are_described(document: Any, server: ScriptedServer) -> None:
    for response, status in (
        (server.chat(temperature=9), 400),
        (server.chat(model="other"), 404),
        (
            server.http.post(
                server.url + "/v1/chat/completions", content=b"x", headers={"content-type": "text/plain"}
            ),
            415,
        ),
    ):
        assert response.status_code == status
        jsonschema.validate(response.json(), closed(answer_schema(document, "/v1/chat/completions", status)))
    for operations in document["paths"].values():
        for one in operations.values():
            assert {"200", "401", "503"} <= one["responses"].keys()
            assert all(
                int(status) != 422 or "detail" not in json.dumps(told)
                for status, told in one["responses"].items()
            )


@pytest.mark.parametrize("path", ["/v1/models", "/v1/journeys", "/health", "/tokenizer_info", "/"])
def test_what_is_read_is_described(document: Any, server: ScriptedServer, path: str) -> None:
    server.chat()
    jsonschema.validate(server.get(path).json(), closed(answer_schema(document, path, method="get")))


def test_tokens_are_described(document: Any, server: ScriptedServer) -> None:
    schema = closed(answer_schema(document, "/tokenize"))
    for body in (
        {"prompt": "Hi"},
        {"content": "Hi 🦊", "with_pieces": True},
        {"content": "Hi"},
        {"inputs": "Hi"},
    ):
        found = server.post("/tokenize", {**body, "return_token_strs": True})
        jsonschema.validate(found.json(), schema)
    found = server.post("/detokenize", {"tokens": [5, 6]})
    jsonschema.validate(found.json(), closed(answer_schema(document, "/detokenize")))


GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
BAD: list[dict[str, Any]] = [
    {"temperature": 3},
    {"temperature": "1"},
    {"top_p": 0},
    {"n": 0},
    {"messages": []},
    {"messages": [{"role": "alien", "content": "Hi"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"logit_bias": {"a": 1}},
    {"logit_bias": {"5": 101}},
    {"allowed_token_ids": []},
    {"service_tier": "gold"},
    {"reasoning_effort": "much"},
    {"response_format": {"type": "xml"}},
    {"tools": [{"type": "retrieval", "function": {"name": "f"}}]},
    {"stop": ""},
    {"stop": ["a", ""]},
    {"metadata": {"a": 1}},
    {"truncate_prompt_tokens": -2},
]


def test_what_the_document_forbids_is_refused(document: Any, server: ScriptedServer) -> None:
    body = operation(document, "/v1/chat/completions")["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    jsonschema.validate(GOOD, schema)
    assert server.post("/v1/chat/completions", GOOD).status_code == 200
    for changes in BAD:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**GOOD, **changes}, schema)
        assert server.post("/v1/chat/completions", {**GOOD, **changes}).status_code == 400, changes


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        ("/tokenize", {}),
        ("/apply-template", {}),
        ("/v1/messages", {"model": MODEL, "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"model": MODEL}),
    ],
)
def test_conversations_are_not_empty(
    document: Any, server: ScriptedServer, path: str, rest: dict[str, Any]
) -> None:
    schema = operation(document, path)["requestBody"]["content"]["application/json"]["schema"]
    for messages, status in (([{"role": "user", "content": "Hi"}], 200), ([], 400)):
        body = {**rest, "messages": messages}
        assert jsonschema.Draft202012Validator(schema).is_valid(body) == (status == 200)
        assert server.post(path, body).status_code == status
