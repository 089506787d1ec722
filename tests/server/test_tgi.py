"""The dialect of Text Generation Inference, asked by Hugging Face's own unmodified clients and, where the bytes matter,
raw.
"""

from __future__ import annotations

import json
from typing import Any

import huggingface_hub.errors
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_engine import logprob
from scripted_server import MODEL, TEXT, TEXTS, MakeServer, ScriptedServer

from tokentrail.answer import TextPrompt
from tokentrail.protocol import Overloaded, TokentrailError

ALL = {"max_new_tokens": 200}


@pytest.fixture
def client(server: ScriptedServer) -> InferenceClient:
    return InferenceClient(server.url)


def events(server: ScriptedServer, path: str = "/generate_stream", **body: Any) -> list[dict[str, Any]]:
    response = server.post(path, {"inputs": "Hi", **body})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "[DONE]" not in response.text
    return [json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-1]]


def generate(server: ScriptedServer, **parameters: Any) -> Any:
    return server.post("/generate", {"inputs": "Hi", "parameters": parameters}).json()


def test_whole(client: InferenceClient, server: ScriptedServer) -> None:
    assert client.text_generation("Hi", **ALL) == TEXT
    assert server.engine.requests[-1].prompt == server.state.ready_backend().tokenize(TextPrompt("Hi"))
    assert client.text_generation("Hi", return_full_text=True, **ALL) == "Hi" + TEXT


def test_details(client: InferenceClient, server: ScriptedServer) -> None:
    answer = client.text_generation(
        "Hi there", details=True, decoder_input_details=True, top_n_tokens=2, **ALL
    )
    assert answer.generated_text == TEXT
    details = answer.details
    assert details is not None
    assert (details.finish_reason, details.generated_tokens) == ("eos_token", len(server.tokens))
    assert details.seed is None  # nothing was drawn
    assert [token.id for token in details.tokens] == server.tokens
    assert "".join(token.text for token in details.tokens) == TEXT
    assert [token.logprob for token in details.tokens] == [logprob(id) for id in server.tokens]
    assert [token.special for token in details.tokens] == [False] * (len(server.tokens) - 1) + [True]
    assert [len(top) for top in details.top_tokens or ()] == [2] * len(server.tokens)
    assert [token.text for token in details.prefill] == ["Hi", " there"]
    assert details.prefill[0].logprob is None
    assert details.prefill[1].logprob == logprob(details.prefill[1].id)


def test_streamed(client: InferenceClient, server: ScriptedServer) -> None:
    pieces = list(client.text_generation("Hi", stream=True, **ALL))
    assert "".join(pieces) == TEXT
    assert len(pieces) == len(server.tokens)
    answer = list(client.text_generation("Hi", stream=True, details=True, top_n_tokens=1, **ALL))
    *before, last = answer
    assert all(part.generated_text is None and part.details is None for part in before)
    assert "".join(part.token.text for part in answer) == last.generated_text == TEXT
    assert [part.index for part in answer] == list(range(1, len(server.tokens) + 1))
    assert last.details is not None
    assert (last.details.finish_reason, last.details.generated_tokens) == ("eos_token", len(server.tokens))
    assert last.details.input_length == 1


async def test_async(server: ScriptedServer) -> None:
    client = AsyncInferenceClient(server.url)
    assert await client.text_generation("Hi", **ALL) == TEXT
    text = ""
    async for piece in await client.text_generation("Hi", stream=True, **ALL):
        text += piece
    assert text == TEXT


def test_conversations_of_the_same_client(server: ScriptedServer) -> None:
    """Which asks OpenAI's route."""
    client = InferenceClient(base_url=server.url)
    answer = client.chat_completion([{"role": "user", "content": "Hi"}], model=MODEL)
    assert answer.choices[0].message.content == TEXT


def test_why_it_ended(server: ScriptedServer) -> None:
    cut = generate(server, max_new_tokens=3, details=True)
    assert (cut["generated_text"], cut["details"]["finish_reason"]) == ("The quick brown", "length")
    stopped = generate(server, stop=["ck br", "jumps"], details=True)
    # The stop text is part of the answer, as it is with TGI.
    assert stopped["generated_text"] == "The quick br"
    assert stopped["details"]["finish_reason"] == "stop_sequence"
    assert "".join(token["text"] for token in stopped["details"]["tokens"]) == "The quick br"
    last = events(server, parameters={"stop": ["ck br"], "details": True})[-1]
    assert (last["generated_text"], last["details"]["finish_reason"]) == ("The quick br", "stop_sequence")


def test_parameters(server: ScriptedServer) -> None:
    def sampling(**parameters: Any) -> Any:
        assert "generated_text" in generate(server, **parameters)
        return server.engine.requests[-1].sampling

    plain = sampling()
    assert (plain.temperature, plain.max_tokens, plain.logprobs) == (0, 100, None)
    assert sampling(do_sample=True).temperature == 1
    assert sampling(temperature=1.0).temperature == 0
    assert sampling(top_p=0.5).temperature == 1
    assert sampling(typical_p=0.95).temperature == 1
    assert sampling(typical_p=1.0).temperature == 0
    given = sampling(
        do_sample=True,
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        repetition_penalty=1.5,
        frequency_penalty=0.25,
        seed=3,
        max_new_tokens=9,
        typical_p=0.95,
        watermark=False,
        grammar=None,
        stop=[],
    )
    assert (given.temperature, given.top_k, given.top_p, given.typical_p) == (0.5, 7, 0.75, 0.95)
    names = ("repetition_penalty", "frequency_penalty", "seed", "max_tokens")
    assert [getattr(given, name) for name in names] == [1.5, 0.25, 3, 9]


def test_truncated_inputs(server: ScriptedServer) -> None:
    body = {"inputs": "one two three four", "parameters": {"truncate": 2, "return_full_text": True}}
    answer = server.post("/generate", body).json()
    backend = server.state.ready_backend()
    assert backend.detokenize(server.engine.requests[-1].prompt) == " three four"
    assert answer["generated_text"] == "one two three four" + TEXT
    body["parameters"] |= {"decoder_input_details": True, "return_full_text": False}
    answer = server.post("/generate", body).json()
    assert answer["generated_text"] == TEXT
    assert [token["text"] for token in answer["details"]["prefill"]] == [" three", " four"]


def test_the_best_of_several(make_server: MakeServer, text_parts: Any) -> None:
    texts = ["zebra giraffe", " a", "hippopotamus"]
    tokens = [[*text_parts.tokenizer.encode(text), 2] for text in texts]
    server = make_server(engine={"script": lambda request: tokens[request.choice]})
    answer = generate(server, best_of=3, do_sample=True, details=True, seed=1)
    assert answer["generated_text"] == " a"  # of the lowest ids, which the scripted engine thinks likeliest
    others = answer["details"]["best_of_sequences"]
    assert {other["generated_text"] for other in others} == {"zebra giraffe", "hippopotamus"}
    assert answer["details"]["seed"] == 1


def test_forms(server: ScriptedServer, client: InferenceClient) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    client.text_generation("Hi", grammar={"type": "json", "value": schema})  # type: ignore[arg-type]
    assert '"age"' in (server.engine.requests[-1].grammar or "")
    generate(server, grammar={"type": "regex", "value": "[0-9]+"})
    assert "[0-9]+" in (server.engine.requests[-1].grammar or "")


def test_info(server: ScriptedServer) -> None:
    info = server.get("/info").json()
    assert (info["model_id"], info["max_total_tokens"], info["max_input_tokens"]) == (MODEL, 512, 511)
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"temperature": -1.0}, "parameters.temperature must be"),
        ({"top_p": 0}, "parameters.top_p must be"),
        ({"top_k": 0}, "parameters.top_k must be at least 1"),
        ({"top_k": "7"}, "'parameters.top_k'"),
        ({"max_new_tokens": 0}, "parameters.max_new_tokens must be at least 1"),
        ({"max_new_tokens": 100_000}, "maximum context length"),
        ({"top_n_tokens": 21}, "parameters.top_n_tokens must be from 0 to 20"),
        ({"best_of": 2}, "needs do_sample"),
        ({"best_of": 500, "do_sample": True}, "parameters.best_of must be from 1 to 128"),
        ({"typical_p": 1.5}, "parameters.typical_p must be in (0, 1]"),
        ({"watermark": True}, "parameters.watermark is not supported"),
        ({"grammar": {"type": "xml", "value": "a"}}, "parameters.grammar"),
        ({"grammar": {"type": "regex", "value": "("}}, "parameters.grammar"),
        ({"grammar": {"type": "json", "value": {"not": {}}}}, "parameters.grammar"),
        ({"adapter_id": "other"}, "parameters.adapter_id"),
    ],
)
def test_what_is_wrong_is_named(server: ScriptedServer, parameters: dict[str, Any], words: str) -> None:
    for path in ("/generate", "/") if "best_of" in parameters else ("/generate", "/generate_stream", "/"):
        response = server.post(path, {"inputs": "Hi", "parameters": parameters})
        body = response.json()
        assert (response.status_code, body["error_type"]) == (422, "validation")
        assert list(body) == ["error", "error_type"]
        assert words in body["error"]


def test_a_stream_is_of_one_answer(server: ScriptedServer) -> None:
    for parameters in ({"best_of": 2, "do_sample": True}, {"decoder_input_details": True}):
        response = server.post("/generate_stream", {"inputs": "Hi", "parameters": parameters})
        assert response.status_code == 422
        assert "is not supported in a stream" in response.json()["error"]


def test_errors_have_tgis_shape(make_server: MakeServer) -> None:
    server = make_server(engine={"error": Overloaded("Too much."), "error_after": 0})
    busy = server.post("/generate", {"inputs": "Hi"})
    assert (busy.status_code, busy.json()) == (429, {"error": "Too much.", "error_type": "overloaded"})
    with pytest.raises(huggingface_hub.errors.OverloadedError):
        InferenceClient(server.url).text_generation("Hi")
    with pytest.raises(huggingface_hub.errors.ValidationError):
        InferenceClient(server.url).text_generation("Hi", temperature=-1)
    broken = make_server(engine={"error": TokentrailError("It broke."), "error_after": 3})
    response = broken.post("/generate", {"inputs": "Hi"})
    assert (response.status_code, response.json()) == (
        424,
        {"error": "It broke.", "error_type": "generation"},
    )
    streamed = events(broken)
    assert streamed[-1] == {"error": "It broke.", "error_type": "generation"}
    assert "".join(event["token"]["text"] for event in streamed[:-1]) == "The quick brown"
    client = InferenceClient(broken.url)
    with pytest.raises(huggingface_hub.errors.GenerationError):
        list(client.text_generation("Hi", stream=True))
    locked = make_server(api_keys=("secret",))
    refused = locked.post("/", {"inputs": "Hi"})
    assert (refused.status_code, refused.json()["error_type"]) == (401, "authentication")
    assert InferenceClient(locked.url, token="secret").text_generation("Hi", **ALL) == TEXT


def test_it_can_be_turned_off(make_server: MakeServer) -> None:
    server = make_server(tgi_api=False)
    assert server.post("/generate", {"inputs": "Hi"}).status_code == 404
    assert server.post("/", {"inputs": "Hi"}).status_code == 405
    assert server.get("/").json()["name"] == "Tokentrail"


def test_streams_joined_are_the_whole_answer(make_server: MakeServer, text_parts: Any) -> None:
    tokens: list[int] = []
    cuts = iter(())
    server = make_server(engine={"script": lambda request: tokens, "cut": lambda: next(cuts, 1)})

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(TEXTS, st.lists(st.integers(1, 3)), st.booleans(), st.booleans())
    def check(text: str, sizes: list[int], stop: bool, prefill: bool) -> None:
        nonlocal tokens, cuts
        tokens = [*text_parts.tokenizer.encode(text), 2]
        parameters = {"stop": ["文🦊", "é"]} if stop else {}
        cuts = iter(sizes)
        streamed = events(server, parameters={**parameters, "details": True})
        cuts = iter(())
        whole = generate(server, **parameters, details=True, decoder_input_details=prefill)
        answer = whole["generated_text"]
        assert "".join(event["token"]["text"] for event in streamed) == answer
        assert (
            "".join(event["token"]["text"] for event in streamed if not event["token"]["special"]) == answer
        )
        assert streamed[-1]["generated_text"] == answer
        assert "".join(token["text"] for token in whole["details"]["tokens"]) == answer
        if not stop:
            assert answer == text
        for name in ("finish_reason", "generated_tokens"):
            assert streamed[-1]["details"][name] == whole["details"][name]
        ids = [event["token"]["id"] for event in streamed]
        assert ids == [token["id"] for token in whole["details"]["tokens"]]

    check()
