"""Every operation of the dialects documents its success, and what is really answered is as documented: nothing more."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from openapi_document import closed
from scripted_model import CALL, WEATHER, Scripted
from scripted_server import MODEL

from tokentrail.answer.parts import TextParts

TAGS = {
    *("OpenAI", "OpenAI Responses", "Anthropic", "batches", "tokens"),
    *("Ollama", "llama.cpp", "Text Generation Inference"),
}
JSON, EVENTS, LINES = "application/json", "text/event-stream", "application/x-ndjson"
USER = [{"role": "user", "content": "Hi"}]
TEXT = "<think>Hm.</think>It is 20 degrees. " + CALL
"""What the model says to everything: thoughts, a text, and a call."""


@pytest.fixture(scope="module")
def scripted(text_parts: TextParts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    folder: Path = tmp_path_factory.mktemp("served")
    filters = folder / "filters.yaml"
    filters.write_text("filters:\n  - {name: rude, words: [damn], action: flag}\n", encoding="utf-8")
    made = Scripted(text_parts, files_dir=str(folder / "files"), responses_store=10, deployment=str(filters))
    made.says = TEXT
    yield made
    made.server.close()


@pytest.fixture(scope="module")
def document(scripted: Scripted) -> Any:
    return scripted.server.get("/openapi.json").json()


class Asked:
    """Asks, and holds each answer to the document."""

    def __init__(self, document: Any, server: Any) -> None:
        self._document = document
        self._server = server
        self.operations: set[tuple[str, str, str]] = set()
        """(method, path, media type)"""

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """`path` with its parameters in it, as {name:value}."""
        template = re.sub(r"\{(\w+):[^}]*\}", r"{\1}", path).partition("?")[0]
        url = self._server.url + re.sub(r"\{\w+:([^}]*)\}", r"\1", path)
        if body is not None:
            options["json"] = body
        found: httpx.Response = self._server.http.request(method, url, **options)
        assert found.status_code == 200, found.text
        kind = found.headers["content-type"].partition(";")[0]
        content = self._document["paths"][template][method.lower()]["responses"]["200"]["content"]
        self.operations.add((method, template, kind))
        schema = content[kind]["schema"]
        if kind == JSON:
            jsonschema.validate(found.json(), closed(schema))
        elif kind == EVENTS:
            hold_events(found.text, schema)
        elif kind == LINES:
            assert found.text.endswith("\n") or "\n" not in found.text
            for line in found.text.splitlines():
                jsonschema.validate(json.loads(line), closed(schema))
        return found


def hold_events(text: str, schema: Any) -> None:
    data = schema["properties"]["data"]
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events
    if "anyOf" in data:
        done, data = data["anyOf"]
        assert events.pop() == done["const"]
    validator = jsonschema.Draft202012Validator(closed(data["contentSchema"]))
    for one in events:
        validator.validate(json.loads(one))


def test_answers_are_as_documented(document: Any, scripted: Scripted) -> None:
    ask = Asked(document, scripted.server)
    asked: dict[str, Any] = {"model": MODEL, "messages": USER, "max_tokens": 200}
    function = WEATHER["function"]
    for stream in (False, True):
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        streams = {"stream": stream, **usage}
        ask("POST", "/v1/chat/completions", {**asked, **streams, "tools": [WEATHER], "logprobs": True})
        ask("POST", "/v1/chat/completions", {**asked, **streams, "functions": [function], "n": 2})
        plain = {"model": MODEL, "prompt": "Hi", "max_tokens": 200, "stream": stream}
        ask("POST", "/v1/completions", {**plain, "logprobs": 2, "return_token_ids": True})
        ask(
            "POST",
            "/v1/messages",
            {
                **asked,
                "stream": stream,
                "tools": [{"name": function["name"], "input_schema": function["parameters"]}],
            },
        )
        items = {"model": MODEL, "input": "Hi", "stream": stream}
        ask(
            "POST", "/v1/responses", {**items, "tools": [{"type": "function", **function}], "top_logprobs": 1}
        )
        ask("POST", "/v1/responses", {**items, "max_output_tokens": 3})
        ask("POST", "/api/chat", {**asked, "stream": stream, "tools": [WEATHER], "logprobs": True})
        ask("POST", "/api/generate", {"model": MODEL, "prompt": "Hi", "stream": stream})
        for more in ({}, {"n_probs": 2, "timings_per_token": True}, {"response_fields": ["content"]}):
            ask("POST", "/completion", {"prompt": "Hi", "n_predict": 200, "stream": stream, **more})
        details = {"details": True, "top_n_tokens": 2, "decoder_input_details": not stream}
        generate = {"inputs": "Hi", "parameters": {"max_new_tokens": 50, **details}}
        ask("POST", "/generate_stream" if stream else "/generate", generate)
        ask("POST", "/", {**generate, "stream": stream})
        ask("POST", "/api/pull", {"model": MODEL, "stream": stream})
    ask(
        "POST",
        "/generate",
        {"inputs": "Hi", "parameters": {"do_sample": True, "best_of": 2, "details": True}},
    )

    ask("POST", "/v1/messages/count_tokens", {"model": MODEL, "messages": USER})
    for encoding in ("float", "base64"):
        ask("POST", "/v1/embeddings", {"model": MODEL, "input": ["a", "b"], "encoding_format": encoding})
    ask("POST", "/v1/moderations", {"input": ["damn", "fine"]})
    ask("GET", "/v1/models")
    ask("GET", f"/v1/models/{{id:{MODEL}}}")
    response = ask("POST", "/v1/responses", {"model": MODEL, "input": "Hi"}).json()
    ask("POST", "/v1/responses/input_tokens", {"model": MODEL, "input": "Hi"})
    for path in ("", "/input_items"):
        ask("GET", f"/v1/responses/{{id:{response['id']}}}{path}")
    ask("DELETE", f"/v1/responses/{{id:{response['id']}}}")
    hold_batches(ask)
    for texts in ({"prompt": "Hi"}, {"content": "Hi 🦊", "with_pieces": True}, {"inputs": "Hi"}):
        ask("POST", "/tokenize", {**texts, "return_token_strs": True})
    ask("POST", "/detokenize", {"tokens": [5, 6]})
    ask("GET", "/tokenizer_info")

    ask("POST", "/api/embed", {"model": MODEL, "input": ["a", "b"]})
    ask("POST", "/api/embeddings", {"model": MODEL, "prompt": "a"})
    for path in ("/api/tags", "/api/ps", "/api/version", "/props", "/slots", "/info"):
        ask("GET", path)
    ask("POST", "/api/show", {"model": MODEL})
    ask("POST", "/embedding", {"content": ["a", "b"]})
    ask("POST", "/apply-template", {"messages": USER})

    described = {
        (method.upper(), path, kind)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if TAGS.intersection(operation["tags"])
        for kind in operation["responses"]["200"]["content"]
    }
    # The model here has no tokens for the first, the second always refuses, and a batch is over before it is cancelled.
    never = {"/infill", "/v1/responses/{id}/cancel", "/v1/batches/{id}/cancel"}
    assert {one for one in described if one[1] not in never} == ask.operations


def hold_batches(ask: Asked) -> None:
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": MODEL, "prompt": "a"},
    }
    upload = {"files": {"file": ("a.jsonl", json.dumps(line))}, "data": {"purpose": "batch"}}
    file = ask("POST", "/v1/files", **upload).json()
    ask("GET", "/v1/files?limit=1")
    ask("GET", f"/v1/files/{{id:{file['id']}}}")
    assert json.loads(ask("GET", f"/v1/files/{{id:{file['id']}}}/content").text) == line
    create = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = ask("POST", "/v1/batches", create).json()
    path = f"/v1/batches/{{id:{batch['id']}}}"
    ends = time.monotonic() + 60
    while ask("GET", path).json()["status"] != "completed":
        assert time.monotonic() < ends
        time.sleep(0.01)
    ask("GET", "/v1/batches")
    ask("DELETE", f"/v1/files/{{id:{file['id']}}}")
    # One that ends with mistakes in its file: its errors are described, too.
    file = ask("POST", "/v1/files", **{**upload, "files": {"file": ("b.jsonl", "{}")}}).json()
    batch = ask("POST", "/v1/batches", {**create, "input_file_id": file["id"]}).json()
    path = f"/v1/batches/{{id:{batch['id']}}}"
    while ask("GET", path).json()["status"] != "failed":
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_every_success_is_documented(document: Any) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation["responses"]["200"]["content"]
            assert content, (method, path)
            for described in content.values():
                assert described["schema"], (method, path)
    assert "$ref" not in json.dumps(document["paths"])
