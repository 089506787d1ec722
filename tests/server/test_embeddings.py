"""/v1/embeddings, by the unmodified `openai` client and raw."""

from __future__ import annotations

import asyncio
import base64
from array import array
from typing import Any

import openai
import pytest
from scripted_engine import scripted_vector
from scripted_server import MODEL, MakeServer, ScriptedServer

from tokentrail.protocol import EngineDead, Overloaded

TEXTS = ["Hello", "北京欢迎你！", "a longer text with 🎉 in it"]


def post(server: ScriptedServer, **body: Any) -> Any:
    return server.post("/v1/embeddings", {"model": MODEL, **body})


def test_texts(server: ScriptedServer) -> None:
    made = server.client().embeddings.create(model=MODEL, input=TEXTS)
    requests = {request.id: request for request in server.engine.requests[-3:]}
    assert made.object == "list"
    assert made.model == MODEL
    for index, (one, text) in enumerate(zip(made.data, TEXTS, strict=True)):
        assert (one.index, one.object) == (index, "embedding")
        tokens = server.post("/tokenize", {"prompt": text}).json()["tokens"]
        request = next(r for r in requests.values() if r.prompt == tokens)
        assert one.embedding == array("f", scripted_vector(request)).tolist()
        assert request.pooling is not None
        assert (request.pooling.kind, request.pooling.normalize) == ("last", True)
    assert (
        made.usage.prompt_tokens == made.usage.total_tokens == sum(len(r.prompt) for r in requests.values())
    )


def test_floats_and_base64_are_the_same_numbers(server: ScriptedServer) -> None:
    floats = post(server, input="Hello").json()["data"][0]["embedding"]
    packed = post(server, input="Hello", encoding_format="base64").json()["data"][0]["embedding"]
    assert array("f", base64.b64decode(packed)).tolist() == floats
    client = server.client()
    assert (
        client.embeddings.create(model=MODEL, input="Hello", encoding_format="float").data[0].embedding
        == floats
    )


async def test_the_asynchronous_client(server: ScriptedServer) -> None:
    client = server.async_client()
    many = await asyncio.gather(*(client.embeddings.create(model=MODEL, input=text) for text in TEXTS))
    together = await client.embeddings.create(model=MODEL, input=TEXTS)
    assert [one.data[0].embedding for one in many] == [one.embedding for one in together.data]


def test_token_ids(server: ScriptedServer) -> None:
    client = server.client()
    assert client.embeddings.create(model=MODEL, input=[5, 6, 7]).data[0].embedding[1:4] == [3, 5, 7]
    several = client.embeddings.create(model=MODEL, input=[[5, 6, 7], [9]])
    assert [one.embedding[1:4] for one in several.data] == [[3, 5, 7], [1, 9, 9]]


def test_dimensions(server: ScriptedServer) -> None:
    made = server.client().embeddings.create(model=MODEL, input="Hello", dimensions=3)
    assert len(made.data[0].embedding) == 3


def test_a_conversation(server: ScriptedServer) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert post(server, messages=messages).status_code == 200
    tokens = server.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()["tokens"]
    assert server.engine.requests[-1].prompt == tokens


def test_truncation_keeps_the_end(server: ScriptedServer) -> None:
    made = post(server, input=list(range(100, 120)), truncate_prompt_tokens=4).json()
    assert server.engine.requests[-1].prompt == [116, 117, 118, 119]
    assert made["usage"]["prompt_tokens"] == 4
    assert (
        post(server, input="word " * 3000, truncate_prompt_tokens=-1).json()["usage"]["prompt_tokens"] == 512
    )


def test_options_reach_the_engine(make_server: MakeServer) -> None:
    server = make_server(api_keys=("k",))
    body = {
        "model": MODEL,
        "input": "Hi",
        "priority": 7,
        "cache_salt": "s",
        "user": "u",
        "add_special_tokens": False,
    }
    response = server.post("/v1/embeddings", body, authorization="Bearer k", **{"x-request-id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    request = server.engine.requests[-1]
    assert request.priority == 7
    assert request.salt.endswith(":s")
    assert request.tenant
    journey = server.get("/v1/journeys/mine", headers={"authorization": "Bearer k"}).json()
    assert (journey["outcome"], journey["endpoint"]) == ("stop", "/v1/embeddings")
    assert journey["prompt_tokens"] == len(request.prompt)


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        ({}, "You must provide input", "input"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "either input or messages", "input"),
        ({"input": ""}, "is empty", "input"),
        ({"input": []}, "empty list", "input"),
        ({"input": ["a", ""]}, "input[1] is empty", "input"),
        ({"input": [[]]}, "is empty", "input"),
        ({"input": ["a"] * 2049}, "2049 entries", "input"),
        ({"input": "word " * 1000}, "maximum context length is 512", "input"),
        ({"input": [5] * 513}, "513 tokens", "input"),
        ({"input": [5, 99999999]}, "not a token id", "input"),
        ({"input": {"a": 1}}, "Invalid value for 'input'", "input"),
        ({"input": "a", "dimensions": 0}, "dimensions must be from 1 to 8", "dimensions"),
        ({"input": "a", "dimensions": 9}, "dimensions must be from 1 to 8", "dimensions"),
        ({"input": "a", "dimensions": "4"}, "dimensions", "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "float or base64", "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 513}, "from 1 to 512", "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "from 1 to 512", "truncate_prompt_tokens"),
        ({"input": "a", "priority": 2**70}, "priority", "priority"),
        ({"messages": []}, "empty", "messages"),
    ],
)
def test_what_is_wrong_is_named(server: ScriptedServer, body: dict[str, Any], words: str, param: str) -> None:
    response = post(server, **body)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert words in error["message"]
    assert error["param"] == param


def test_an_unknown_model(server: ScriptedServer) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        server.client().embeddings.create(model="other", input="a")


def test_long_lists_go_piece_by_piece(make_server: MakeServer) -> None:
    """No more than a window of them is in the engine at a time, and each vector comes in its place."""
    server = make_server()
    made = post(server, input=[[n + 1] * (n % 7 + 1) for n in range(2048)]).json()
    assert [one["embedding"][1:3] for one in made["data"]] == [[n % 7 + 1, n + 1] for n in range(2048)]
    assert server.engine.most_running == 128


@pytest.mark.parametrize(("error", "status"), [(Overloaded("full"), 429), (EngineDead("dead"), 503)])
def test_an_engine_that_refuses(make_server: MakeServer, error: Exception, status: int) -> None:
    server = make_server(engine={"error": error})
    assert post(server, input=TEXTS).status_code == status
    assert not server.engine.running


async def test_a_client_that_leaves_ends_its_request(make_server: MakeServer) -> None:
    server = make_server(engine={"first_delay": 30.0})
    with pytest.raises(openai.APITimeoutError):
        await server.async_client(timeout=0.3).embeddings.create(model=MODEL, input=TEXTS)
    for _ in range(100):
        if not server.engine.running:
            break
        await asyncio.sleep(0.02)
    assert len(server.engine.aborted) == 3
