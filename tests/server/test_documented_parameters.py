"""docs/api.md has every parameter that a request may hold, and none that no request knows; and every endpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from scripted_server import ScriptedServer

from tokentrail.server.anthropic.requests import MessagesRequest
from tokentrail.server.llama_cpp import requests as llama_cpp
from tokentrail.server.ollama import requests as ollama
from tokentrail.server.openai.embeddings import EmbeddingsRequest
from tokentrail.server.openai.requests import ChatCompletionRequest, CompletionRequest, StreamOptions
from tokentrail.server.responses.requests import ResponsesRequest
from tokentrail.server.tgi import requests as tgi

DOCS = Path(__file__).resolve().parents[2] / "docs"
SECTIONS: dict[str, list[type[BaseModel]]] = {
    "Parameters": [ChatCompletionRequest, CompletionRequest, StreamOptions],
    "Embeddings": [EmbeddingsRequest],
    "Responses": [ResponsesRequest],
    "Anthropic": [MessagesRequest],
    "Ollama": [
        ollama.ChatRequest,
        ollama.GenerateRequest,
        ollama.EmbedRequest,
        ollama.EmbeddingsRequest,
        ollama.Options,
    ],
    "llama.cpp's server": [llama_cpp.CompletionRequest, llama_cpp.InfillRequest, llama_cpp.EmbeddingRequest],
    "Text Generation Inference": [tgi.GenerateRequest, tgi.CompatRequest, tgi.Parameters],
}


def section(title: str) -> str:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#{{1,3}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def code(text: str) -> set[str]:
    """Words in the style of code; `a.b` is three."""
    words = {word for span in re.findall(r"`([^`]+)`", text) for word in re.findall(r"[\w.]+", span)}
    return words.union(*(word.split(".") for word in words))


def known(model: Any) -> set[str]:
    fields = {info.alias or name for name, info in model.model_fields.items()}
    return fields | set(getattr(model, "UNSUPPORTED", ())) | set(getattr(model, "HARMLESS", ()))


@pytest.mark.parametrize("title", SECTIONS)
def test_every_parameter_is_documented(title: str) -> None:
    said = code(section(title))
    if "as with [Ollama]" in section(title):
        said |= code(section("Ollama"))
    for model in SECTIONS[title]:
        assert known(model) - said == set(), model.__name__


@pytest.mark.parametrize("title", SECTIONS)
def test_every_documented_parameter_is_known(title: str) -> None:
    names = set().union(*map(known, SECTIONS[title]))
    tables = re.findall(r"^\| parameter \|.*\n\| ---.*\n((?:\|.*\n)+)", section(title), re.MULTILINE)
    assert tables
    for row in "".join(tables).splitlines():
        first = row.split("|")[1]
        if "block" not in first:  # those are inside of messages
            said = re.findall(r"`([^`]+)`", first)
            assert [name for name in said if not {name, *name.split(".")} & names] == []


@pytest.mark.parametrize(
    ("path", "models"),
    [
        ("/v1/chat/completions", [ChatCompletionRequest]),
        ("/v1/completions", [CompletionRequest]),
        ("/v1/embeddings", [EmbeddingsRequest]),
        ("/v1/responses", [ResponsesRequest]),
        ("/v1/messages", [MessagesRequest]),
        ("/api/chat", [ollama.ChatRequest]),
        ("/api/generate", [ollama.GenerateRequest]),
        ("/completion", [llama_cpp.CompletionRequest]),
        ("/infill", [llama_cpp.InfillRequest]),
        ("/generate", [tgi.GenerateRequest]),
    ],
)
def test_the_openapi_document_has_the_same(server: ScriptedServer, path: str, models: list[Any]) -> None:
    document = server.get("/openapi.json").json()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    fields = {info.alias or name for model in models for name, info in model.model_fields.items()}
    assert set(schema["properties"]) == fields


def test_every_endpoint_is_documented(server: ScriptedServer) -> None:
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("api.md", "gateway.md"))
    for path in server.get("/openapi.json").json()["paths"]:
        pattern = re.sub(r"\\\{\w+\\\}", r"\\{\\w+\\}", re.escape(path))
        assert re.search(rf"`(?:[A-Z]+ )?{pattern}[`?]", text), path
