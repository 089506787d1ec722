"""Ollama's dialect, asked by its own unmodified client and, where the bytes matter, raw."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import httpx
import ollama
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import MODEL, TEXT, TEXTS, MakeServer, ScriptedServer

from tokentrail.answer.parsing import Formats
from tokentrail.answer.parts import TextParts
from tokentrail.protocol import Overloaded, TokentrailError
from tokentrail.text import Infill

MESSAGES = [{"role": "user", "content": "Hi"}]
LATEST = f"{MODEL}:latest"


@pytest.fixture
def client(server: ScriptedServer) -> ollama.Client:
    return ollama.Client(server.url)


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def test_chat_whole(client: ollama.Client) -> None:
    answer = client.chat(MODEL, MESSAGES)
    assert answer.message.role == "assistant"
    assert answer.message.content == TEXT
    assert answer.message.thinking is None
    assert answer.message.tool_calls is None
    assert (answer.done, answer.done_reason, answer.model) == (True, "stop", MODEL)
    check_counts(answer)


def check_counts(answer: Any) -> None:
    assert answer.prompt_eval_count > 3
    assert answer.eval_count > 10
    assert answer.prompt_eval_duration > 0
    assert answer.eval_duration > 0
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration


def test_chat_streamed(client: ollama.Client) -> None:
    *parts, last = client.chat(LATEST, MESSAGES, stream=True)
    assert "".join(part.message.content or "" for part in parts) == TEXT
    assert all(not part.done and part.message.role == "assistant" for part in parts)
    assert len(parts) > 10
    assert (last.done, last.done_reason, last.message.content, last.model) == (True, "stop", "", LATEST)
    check_counts(last)


async def test_async(server: ScriptedServer) -> None:
    client = ollama.AsyncClient(server.url)
    assert (await client.chat(MODEL, MESSAGES)).message.content == TEXT
    text = ""
    async for part in await client.chat(MODEL, MESSAGES, stream=True):
        text += part.message.content or ""
    assert text == TEXT
    assert (await client.generate(MODEL, "Hi")).response == TEXT
    text = ""
    async for piece in await client.generate(MODEL, "Hi", stream=True):
        text += piece.response or ""
    assert text == TEXT
    assert (await client.list()).models[0].model == LATEST


def test_generate(client: ollama.Client, server: ScriptedServer) -> None:
    answer = client.generate(MODEL, "Hi", system="Be brief.", options={"num_predict": 4})
    assert TEXT.startswith(answer.response or "")
    assert (answer.done_reason, answer.eval_count) == ("length", 4)
    prompt = server.state.ready_backend().detokenize(server.engine.requests[-1].prompt)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    *parts, last = client.generate(MODEL, "Hi", stream=True)
    assert "".join(part.response or "" for part in parts) == TEXT
    assert last.response == ""
    check_counts(last)


def test_raw_prompts_are_sent_as_they_are(client: ollama.Client, server: ScriptedServer) -> None:
    client.generate(MODEL, "Once upon", raw=True)
    assert server.state.ready_backend().detokenize(server.engine.requests[-1].prompt) == "Once upon"


def test_options(client: ollama.Client, server: ScriptedServer) -> None:
    client.chat(
        MODEL,
        MESSAGES,
        options={
            "temperature": 0.5,
            "top_k": 7,
            "top_p": 0.75,
            "min_p": 0.25,
            "seed": 3,
            "stop": ["fox", ""],
            "repeat_penalty": 1.5,
            "presence_penalty": 0.5,
            "frequency_penalty": 1,
            "num_predict": 9,
            "num_ctx": 100_000,
            "num_gpu": 1,
            "mirostat": 0,
            "typical_p": 0.9,
        },
        keep_alive="5m",
    )
    sampling = server.engine.requests[-1].sampling
    assert sampling.stop == ("fox",)
    names = (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "seed",
        "repetition_penalty",
        "max_tokens",
    )
    assert [getattr(sampling, name) for name in names] == [0.5, 7, 0.75, 0.25, 0.9, 3, 1.5, 9]
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, 1)


def test_limits_are_cut_at_the_contexts_end(client: ollama.Client, server: ScriptedServer) -> None:
    for limit in (100_000, -1, 0, -2):
        client.chat(MODEL, MESSAGES, options={"num_predict": limit, "seed": -1, "repeat_last_n": 0})
        request = server.engine.requests[-1]
        assert request.sampling.max_tokens == 512 - len(request.prompt)
        assert request.sampling.seed is not None
        assert request.sampling.repetition_penalty == 1


def test_forms(client: ollama.Client, server: ScriptedServer) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    client.chat(MODEL, MESSAGES, format=schema)
    assert '"age"' in (server.engine.requests[-1].grammar or "")
    client.generate(MODEL, "Hi", format="json")
    assert server.engine.requests[-1].grammar is not None
    client.generate(MODEL, "Hi", format="")
    assert server.engine.requests[-1].grammar is None


def test_logprobs(client: ollama.Client, server: ScriptedServer) -> None:
    answer = client.chat(MODEL, MESSAGES, logprobs=True, top_logprobs=2)
    assert answer.logprobs is not None
    assert "".join(entry.token for entry in answer.logprobs[:4]) == "The quick brown fox"
    assert [len(entry.top_logprobs or ()) for entry in answer.logprobs] == [2] * len(server.tokens)
    assert len(answer.logprobs) == len(server.tokens)
    streamed = list(client.chat(MODEL, MESSAGES, logprobs=True, top_logprobs=2, stream=True))
    assert [entry for part in streamed for entry in part.logprobs or ()] == answer.logprobs


CALLS = 'Wait.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "二🦊"}}\n</tool_call>' * 2


def add(a: int, b: str) -> str:
    """Add them.

    Args:
        a: The first.
        b: The second.
    """
    return f"{a}{b}"


def test_tools(make_server: MakeServer, text_parts: Any) -> None:
    tokens = [*text_parts.tokenizer.encode(CALLS), 2]
    server = make_server(engine={"script": lambda request: tokens})
    client = ollama.Client(server.url)
    whole = client.chat(MODEL, MESSAGES, tools=[add])
    streamed = list(client.chat(MODEL, MESSAGES, tools=[add], stream=True))
    calls = [call for part in streamed for call in part.message.tool_calls or ()]
    assert calls == list(whole.message.tool_calls or ())
    assert len(calls) == 2
    assert calls[0].function.name == "add"
    assert calls[0].function.arguments == {"a": 1, "b": "二🦊"}
    assert "".join(part.message.content or "" for part in streamed) == whole.message.content
    assert whole.done_reason == "stop"
    # And back.
    client.chat(MODEL, [*MESSAGES, whole.message, {"role": "tool", "content": "三", "tool_name": "add"}])
    prompt = server.state.ready_backend().detokenize(server.engine.requests[-1].prompt)
    assert prompt.count('{"name": "add", "arguments": {"a": 1, "b": "二🦊"}}') == 2
    assert "三" in prompt


def test_a_call_that_is_cut_off_is_left_out(make_server: MakeServer, text_parts: Any) -> None:
    tokens = text_parts.tokenizer.encode('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b"')
    server = make_server(engine={"script": lambda request: tokens})
    for stream in (True, False):
        body = {"model": MODEL, "messages": MESSAGES, "stream": stream, "tools": [tool()]}
        last = json.loads(server.post("/api/chat", body).text.splitlines()[-1])
        assert last["done_reason"] == "length"
        assert "tool_calls" not in last["message"]


def tool() -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }


def test_thoughts(make_server: MakeServer, text_parts: Any) -> None:
    tokens = [*text_parts.tokenizer.encode("<think>\n想一想🦊\n</think>\n\n好"), 2]
    server = make_server(engine={"script": lambda request: tokens})
    client = ollama.Client(server.url)
    # This model does not think.
    assert client.chat(MODEL, MESSAGES, think=False).message.content == "<think>\n想一想🦊\n</think>\n\n好"
    with pytest.raises(ollama.ResponseError, match="'demo' does not support thinking") as caught:
        client.chat(MODEL, MESSAGES, think=True)
    assert caught.value.status_code == 400


def test_thoughts_of_a_model_that_thinks(text_parts: TextParts) -> None:
    parts = dataclasses.replace(text_parts, formats=Formats.of(None, reasoning_parser="think"))
    tokens = [*parts.tokenizer.encode("<think>\n想一想🦊\n</think>\n\n好"), 2]
    server = ScriptedServer(parts, {}, {"script": lambda request: tokens}, True)
    try:
        client = ollama.Client(server.url)
        assert "thinking" in (client.show(MODEL).capabilities or ())
        for think in (None, True, "low", False):
            whole = client.chat(MODEL, MESSAGES, think=think).message  # type: ignore[arg-type]
            assert (whole.thinking, whole.content) == ("想一想🦊", "好")
        streamed = [part.message for part in client.chat(MODEL, MESSAGES, think=True, stream=True)]
        assert "".join(part.thinking or "" for part in streamed) == "想一想🦊"
        assert "".join(part.content or "" for part in streamed) == "好"
        generated = client.generate(MODEL, "Hi", think=True)
        assert (generated.thinking, generated.response) == ("想一想🦊", "好")
        # And back.
        client.chat(MODEL, [*MESSAGES, whole, {"role": "user", "content": "And?"}])
    finally:
        server.close()


def test_an_answer_that_was_begun_is_gone_on_with(client: ollama.Client, server: ScriptedServer) -> None:
    client.chat(MODEL, [*MESSAGES, {"role": "assistant", "content": "It is"}])
    prompt = server.state.ready_backend().detokenize(server.engine.requests[-1].prompt)
    assert prompt.endswith("<|im_start|>assistant\nIt is")


def test_asking_nothing_loads_the_model(client: ollama.Client, server: ScriptedServer) -> None:
    before = len(server.engine.requests)
    answer = client.chat(MODEL)
    assert (answer.done, answer.done_reason, answer.message.content) == (True, "load", "")
    assert client.generate(MODEL).done_reason == "load"
    assert client.generate(MODEL, keep_alive=0).done
    assert next(iter(client.chat(MODEL, stream=True))).done
    assert len(server.engine.requests) == before


def test_embeddings(client: ollama.Client, server: ScriptedServer) -> None:
    one = client.embed(LATEST, "Hello")
    assert one.model == LATEST
    assert one.prompt_eval_count == 1
    several = client.embed(MODEL, ["Hello", "世界"], dimensions=3)
    assert [len(vector) for vector in several.embeddings] == [3, 3]
    openai = server.client().embeddings.create(model=MODEL, input="Hello").data[0].embedding
    assert list(one.embeddings[0]) == openai
    raw = client.embeddings(MODEL, "Hello").embedding
    assert len(raw) == len(openai)
    pooling = server.engine.requests[-1].pooling
    assert pooling is not None
    assert not pooling.normalize
    assert client.embed(MODEL, []).embeddings == []
    assert client.embeddings(MODEL, "").embedding == []
    long = "Hello " * 600
    assert len(client.embed(MODEL, long).embeddings) == 1
    with pytest.raises(ollama.ResponseError, match="maximum context length"):
        client.embed(MODEL, long, truncate=False)


def test_filling_in_the_middle(text_parts: TextParts) -> None:
    parts = dataclasses.replace(text_parts, infill=Infill(prefix=4, suffix=5, middle=6))
    server = ScriptedServer(parts, {}, {}, True)
    try:
        client = ollama.Client(server.url)
        assert client.generate(MODEL, "def f(", suffix="):").response == TEXT
        encode = text_parts.tokenizer.encode
        assert server.engine.requests[-1].prompt == [4, *encode("def f("), 5, *encode("):"), 6]
        assert "insert" in (client.show(MODEL).capabilities or ())
    finally:
        server.close()


def test_models(client: ollama.Client, server: ScriptedServer) -> None:
    (model,) = client.list().models
    assert model.model == LATEST
    assert model.size is not None
    assert model.size > 50e6
    assert len(model.digest or "") == 64
    assert model.details is not None
    assert (model.details.format, model.details.quantization_level) == ("gguf", "Q4_1")
    for name in (MODEL, LATEST):
        info = client.show(name)
        assert info.capabilities == ["completion"]
        assert info.modelinfo is not None
        kind = info.modelinfo["general.architecture"]
        assert info.modelinfo[f"{kind}.context_length"] == 512
        assert "im_start" in (info.template or "")
    assert server.post("/api/show", {"name": MODEL}).status_code == 200
    (process,) = client.ps().models
    assert (process.name, process.context_length) == (LATEST, 512)
    version = server.get("/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]  # what editors ask for


def test_names_from_the_list_work_everywhere(server: ScriptedServer) -> None:
    """Editors list models here and ask them in OpenAI's way."""
    (name,) = [model["name"] for model in server.get("/api/tags").json()["models"]]
    answer = server.client().chat.completions.create(model=name, messages=[{"role": "user", "content": "Hi"}])
    assert (answer.model, answer.choices[0].message.content) == (MODEL, TEXT)
    assert (
        server.post("/v1/chat/completions", {"model": "demo:other", "messages": MESSAGES}).status_code == 404
    )


def test_a_served_model_need_not_be_pulled(client: ollama.Client) -> None:
    assert client.pull(MODEL).status == "success"
    assert [part.status for part in client.pull(LATEST, stream=True)] == ["success"]
    with pytest.raises(ollama.ResponseError, match="tokentrail serve") as caught:
        client.pull("other")
    assert caught.value.status_code == 403


def test_models_are_not_managed(client: ollama.Client) -> None:
    for refused in (
        lambda: client.delete(MODEL),
        lambda: client.copy(MODEL, "b"),
        lambda: client.create("b", from_=MODEL),
        lambda: client.push(MODEL),
    ):
        with pytest.raises(ollama.ResponseError, match="is not supported: this server has the model"):
            refused()


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("chat", {"messages": MESSAGES}, "You must provide model"),
        ("chat", {"model": MODEL, "messages": "Hi"}, "messages"),
        ("chat", {"model": MODEL, "messages": [{"role": "alien", "content": "x"}]}, "messages[0].role"),
        ("chat", {"model": MODEL, "messages": [{"role": "user", "images": ["AA=="]}]}, "messages[0].images"),
        (
            "chat",
            {"model": MODEL, "messages": MESSAGES, "options": {"temperature": 3}},
            "options.temperature",
        ),
        (
            "chat",
            {"model": MODEL, "messages": MESSAGES, "options": {"repeat_penalty": 0}},
            "options.repeat_penalty",
        ),
        ("chat", {"model": MODEL, "messages": MESSAGES, "options": {"top_k": "7"}}, "options.top_k"),
        ("chat", {"model": MODEL, "messages": MESSAGES, "options": {"mirostat": 2}}, "options.mirostat"),
        ("chat", {"model": MODEL, "messages": MESSAGES, "options": {"typical_p": 1.5}}, "options.typical_p"),
        ("chat", {"model": MODEL, "messages": MESSAGES, "format": "xml"}, "format must be json"),
        ("chat", {"model": MODEL, "messages": MESSAGES, "format": {"not": {}}}, "format"),
        ("chat", {"model": MODEL, "messages": MESSAGES, "think": "much"}, "think must be"),
        ("chat", {"model": MODEL, "messages": MESSAGES, "top_logprobs": 21}, "top_logprobs"),
        ("generate", {"model": MODEL, "prompt": "a", "images": ["AA=="]}, "images is not supported"),
        (
            "generate",
            {"model": MODEL, "prompt": "a", "template": "{{ .Prompt }}"},
            "template is not supported",
        ),
        ("generate", {"model": MODEL, "prompt": "a", "context": [1, 2]}, "/api/chat"),
        ("generate", {"model": MODEL, "prompt": "a", "suffix": "b"}, "does not support insert"),
        ("generate", {"model": MODEL, "prompt": "a", "system": "b", "raw": True}, "system"),
        ("show", {}, "You must provide model"),
    ],
)
def test_what_is_wrong_is_named(server: ScriptedServer, path: str, body: dict[str, Any], words: str) -> None:
    response = server.post(f"/api/{path}", body)
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert words in response.json()["error"]


def test_errors_have_ollamas_shape(make_server: MakeServer) -> None:
    server = make_server(api_keys=("secret",), engine={"error": Overloaded("Too much."), "error_after": 0})
    assert server.get("/api/tags").status_code == 401
    assert "API key" in server.get("/api/tags").json()["error"]
    server.http.headers["authorization"] = "Bearer secret"
    unknown = server.post("/api/chat", {"model": "other", "messages": MESSAGES})
    assert unknown.status_code == 404
    assert unknown.json()["error"].startswith("model 'other' not found")
    busy = server.post("/api/chat", {"model": MODEL, "messages": MESSAGES})
    assert (busy.status_code, busy.json()) == (503, {"error": "Too much."})
    assert busy.headers["retry-after"] == "1"
    assert isinstance(server.get("/api/nothing").json()["error"], str)


def test_an_error_in_a_stream_is_its_last_line(make_server: MakeServer) -> None:
    server = make_server(engine={"error": TokentrailError("It broke."), "error_after": 3})
    *parts, last = lines(server.post("/api/chat", {"model": MODEL, "messages": MESSAGES}))
    assert "".join(part["message"]["content"] for part in parts) == "The quick brown"
    assert last == {"error": "It broke."}
    with pytest.raises(ollama.ResponseError, match="It broke"):
        list(ollama.Client(server.url).chat(MODEL, MESSAGES, stream=True))


def test_what_curl_sends(server: ScriptedServer) -> None:
    """`curl -d` calls its body a form. A page that posts one is refused."""
    body = json.dumps({"model": MODEL, "prompt": "Hi", "stream": False})
    form = {"content-type": "application/x-www-form-urlencoded"}
    url = f"{server.url}/api/generate"
    assert httpx.post(url, content=body, headers=form).json()["response"] == TEXT
    for header in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert httpx.post(url, content=body, headers={**form, **header}).status_code == 415


def test_the_root_tells_that_a_server_lives(server: ScriptedServer) -> None:
    """As Ollama's command line and many programs ask before all else."""
    assert httpx.head(server.url).status_code == 200
    assert server.get("/").json()["name"] == "Tokentrail"


def test_it_can_be_turned_off(make_server: MakeServer) -> None:
    server = make_server(ollama_api=False)
    assert server.get("/api/tags").status_code == 404
    assert "ollama" not in server.get("/openapi.json").text.lower()


def test_streams_joined_are_the_whole_answer(make_server: MakeServer, text_parts: Any) -> None:
    tokens: list[int] = []
    cuts = iter(())
    server = make_server(engine={"script": lambda request: tokens, "cut": lambda: next(cuts, 1)})

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(TEXTS, st.lists(st.integers(1, 3)), st.sampled_from(["chat", "generate"]), st.booleans())
    def check(text: str, sizes: list[int], path: str, stop: bool) -> None:
        nonlocal tokens, cuts
        tokens = [*text_parts.tokenizer.encode(text), 2]
        body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "prompt": "Hi"}
        body["options"] = {"stop": ["文🦊", "é"]} if stop else {}
        cuts = iter(sizes)
        streamed = lines(server.post(f"/api/{path}", body))
        cuts = iter(())
        whole = server.post(f"/api/{path}", {**body, "stream": False}).json()

        def content(part: dict[str, Any]) -> str:
            return part["message"]["content"] if path == "chat" else part["response"]

        assert "".join(map(content, streamed)) == content(whole)
        if not stop:
            assert content(whole) == text
        last = streamed[-1]
        assert [last[name] for name in ("done_reason", "eval_count")] == [
            whole[name] for name in ("done_reason", "eval_count")
        ]

    check()
