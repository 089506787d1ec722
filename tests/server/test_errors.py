"""What is refused, and how: OpenAI's error shape, the right status, the field at fault."""

from __future__ import annotations

import logging
import socket
from typing import Any

import httpx
import openai
import pytest
from scripted_engine import engine_info
from scripted_server import MODEL, MakeServer, ScriptedServer

from tokentrail.protocol import EngineDead, InvalidRequest, Overloaded
from tokentrail.server import schemas
from tokentrail.server.errors import describe
from tokentrail.server.state import ClientGone

USER = {"role": "user", "content": "Hi"}


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return dict(body["error"])


# (parameter, values that are refused, values that are not)
RANGES = [
    ("temperature", [-0.01, 2.01, 1e9], [0, 0.0, 1, 2, 2.0]),
    # 1e-50 is 0 to the engine, which computes with 32 bits.
    ("top_p", [0, 0.0, 1e-50, -0.1, 1.01], [0.01, 1]),
    ("frequency_penalty", [-2.01, 2.01], [-2, 0, 2.0]),
    ("presence_penalty", [-2.01, 2.01], [-2, 0, 2.0]),
    ("max_tokens", [0, -1], [1, 100]),
    (
        "stop",
        ["", [""], ["a", ""], "x" * 8193, ["x" * 5] * 1639],
        ["x" * 8192, ["x" * 5] * 1638, "x", ["a", "b", "c", "d"], ["a", "b", "c", "d", "e", "f"], []],
    ),
    ("n", [0, -1, 129], [1, 2]),
    ("top_k", [-2, 2**31, 2**70], [-1, 0, 1, 10**9, 2**31 - 1]),
    ("min_p", [-0.1, 1.1], [0, 1]),
    ("typical_p", [0, -0.1, 1.1], [0.01, 1]),
    ("repetition_penalty", [0, -1, 1e-50, 1e39], [0.5, 2]),
    ("min_tokens", [-1, 101], [0, 3]),
    ("seed", [2**63, -(2**63) - 1], [0, 2**63 - 1, -1]),
    ("logit_bias", [{"49152": 1}, {"-1": 1}, {"5": 101}, {"5": -101}, {"five": 1}], [{"5": 100}, {}]),
    ("stop_token_ids", [[-1], [49152]], [[], [5]]),
    ("priority", [2**63, -(2**70)], [0, -1, 2**63 - 1]),
    ("allowed_token_ids", [[], [-1], [49152]], [[5], [5, 5]]),
    ("bad_words", [[""], ["  "], ["x" * 8193]], [[], ["word", " two words"]]),
    ("truncate_prompt_tokens", [0, -2, 512, 2**70], [1, -1, 511]),
    ("service_tier", ["gold"], ["auto", "default", "flex", "priority"]),
]
WRONG_TYPES = [
    ("temperature", ["0.5", True, [1], {}]),
    ("top_p", ["1"]),
    ("max_tokens", [1.5, "5", True, [5]]),
    ("stop", [5, [5], {"a": 1}, [["x"]]]),
    ("n", ["1", 1.5]),
    ("seed", ["7", 0.5]),
    ("stream", ["true", 1]),
    ("frequency_penalty", ["0"]),
    ("logit_bias", [[1], {"5": "much"}]),
    ("model", [5, None, ""]),
    ("stop_token_ids", [5, ["5"]]),
    ("stream_options", ["usage"]),
    ("metadata", [["a"], {"a": 1}, {str(number): "x" for number in range(17)}]),
    ("bad_words", ["word", [5]]),
    ("allowed_token_ids", [5, ["a"]]),
    ("prompt_logprobs", ["1", True]),
    ("store", ["yes"]),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("row", RANGES, ids=[row[0] for row in RANGES])
def test_each_parameter_at_its_bounds(
    server: ScriptedServer, path: str, stream: bool, row: tuple[str, list[Any], list[Any]]
) -> None:
    name, bad, good = row
    base: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "stream": stream}
    base |= {"messages": [USER]} if "chat" in path else {"prompt": "Hi"}
    for value in bad:
        found = error(server.post(path, base | {name: value}), 400)
        assert found["type"] == "invalid_request_error"
        assert found["param"] == name
        assert name in found["message"]
    for value in good:
        assert server.post(path, base | {name: value}).status_code == 200, value


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(("name", "values"), WRONG_TYPES, ids=[row[0] for row in WRONG_TYPES])
def test_a_wrong_type_is_named(server: ScriptedServer, path: str, name: str, values: list[Any]) -> None:
    base: dict[str, Any] = {"model": MODEL, "max_tokens": 1}
    base |= {"messages": [USER]} if "chat" in path else {"prompt": "Hi"}
    for value in values:
        found = error(server.post(path, base | {name: value}), 400)
        assert found["param"].partition(".")[0].partition("[")[0] == name
        assert name in found["message"]
        assert "pydantic" not in found["message"].lower()


def test_null_means_not_given(server: ScriptedServer) -> None:
    nulls = dict.fromkeys(
        ["temperature", "top_p", "max_tokens", "stop", "n", "seed", "logit_bias", "stream", "tools", "user"]
    )
    assert server.chat(**nulls).status_code == 200


def test_messages_of_the_right_kind_only(server: ScriptedServer) -> None:
    cases: list[tuple[Any, str]] = [
        ([], "messages"),
        ("Hi", "messages"),
        ([{"content": "x"}], "messages[0].role"),
        ([USER, {"role": 5, "content": "x"}], "messages[1].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": "no type"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0]",
        ),
        (
            [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
            "messages[0].content[0]",
        ),
    ]
    for messages, param in cases:
        found = error(server.chat(messages=messages), 400)
        assert found["param"] == param, messages
    assert "reads text only" in found["message"]
    missing = error(server.post("/v1/chat/completions", {"model": MODEL}), 400)
    assert (missing["param"], missing["message"]) == ("messages", "You must provide messages.")


@pytest.mark.parametrize(
    "prompt", [[], [[]], "", [""], 5, None, {"a": 1}, [1.5], ["a", 1], [[1], "a"], [-1], [49152]]
)
def test_prompts_of_the_right_kind_only(server: ScriptedServer, prompt: Any) -> None:
    assert error(server.complete(prompt=prompt), 400)["param"].startswith("prompt")


def test_max_tokens_names_prompt_limit_and_context(make_server: MakeServer) -> None:
    server = make_server(engine={"info": engine_info(max_model_len=50)})
    prompt = [9] * 20
    for value in (0, 31):
        found = error(server.complete(prompt=prompt, max_tokens=value), 400)
        assert found["param"] == "max_tokens"
        for number in ("20", "30", "50", str(value)):
            assert number in found["message"]
    assert found["code"] == "context_length_exceeded"
    assert server.complete(prompt=prompt, max_tokens=30).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context(make_server: MakeServer, stream: bool) -> None:
    server = make_server(engine={"info": engine_info(max_model_len=50)})
    found = error(server.complete(prompt="word " * 200, stream=stream), 400)
    assert (found["code"], found["param"]) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 200}], stream=stream
        )
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 50 tokens" in caught.value.message


UNSUPPORTED = [
    ("chat", "modalities", ["text", "audio"]),
    ("chat", "audio", {"voice": "alloy"}),
    ("text", "suffix", "the end"),
    ("chat", "suffix", "the end"),
    ("chat", "best_of", 3),
    ("text", "use_beam_search", True),
]


@pytest.mark.parametrize(("route", "name", "value"), UNSUPPORTED)
def test_what_is_not_supported_says_so(server: ScriptedServer, route: str, name: str, value: Any) -> None:
    ask = server.chat if route == "chat" else server.complete
    found = error(ask(**{name: value}), 400)
    assert found["param"] == name
    assert f"{name} is not supported" in found["message"]


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}}}
WRONG_FORMS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", "'xml'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "You must provide"),
    ({"response_format": SCHEMA}, "response_format.json_schema.schema", '"not"'),
    ({"response_format": 5}, "response_format", "object"),
    ({"guided_json": {"type": "string", "pattern": "(?=a)"}}, "guided_json", "look-ahead"),
    ({"guided_json": "{"}, "guided_json", "not valid JSON"),
    ({"guided_regex": "("}, "guided_regex", "unclosed group"),
    ({"guided_regex": "a" * 300_000}, "guided_regex", "300000 characters"),
    ({"guided_choice": []}, "guided_choice", "not empty"),
    ({"guided_choice": ["a", 1]}, "guided_choice[1]", "a string"),
    ({"guided_grammar": "start: missing"}, "guided_grammar", "unknown name"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "regex, choice"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "either format, or structures"),
    ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs", "not valid JSON"),
    (
        {"structured_outputs": {"structural_tag": {"format": {"type": "poem"}}}},
        "structured_outputs",
        "no format of type 'poem'",
    ),
    ({"response_format": {"type": "structural_tag", "triggers": ["<"]}}, "response_format", "structures"),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs", "json"),
    ({"guided_json": {}, "guided_whitespace_pattern": "("}, "guided_json", "unclosed group"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "one form only"),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG_FORMS)
@pytest.mark.parametrize("route", ["chat", "text"])
@pytest.mark.parametrize("stream", [False, True])
def test_forms_that_cannot_be_had(
    server: ScriptedServer, fields: dict[str, Any], param: str, words: str, route: str, stream: bool
) -> None:
    ask = server.chat if route == "chat" else server.complete
    found = error(ask(**fields, stream=stream), 400)
    assert found["param"] == param
    assert words in found["message"]
    assert len(found["message"]) < 500


def test_a_deep_schema_is_refused(server: ScriptedServer) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(90):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    found = error(server.chat(guided_json=schema), 400)
    assert found["param"] == "guided_json"
    assert "recursion" in found["message"]


@pytest.mark.parametrize(
    "neutral",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"continue_final_message": False},
        {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True},
    ],
)
def test_asking_for_nothing_is_fine(server: ScriptedServer, neutral: dict[str, Any]) -> None:
    assert server.chat(**neutral).status_code == 200


def test_unknown_fields_are_ignored_and_logged_once(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    schemas._told.clear()
    with caplog.at_level(logging.WARNING, "tokentrail"):
        for _ in range(3):
            assert server.chat(no_such_thing="the secret value").status_code == 200
    lines = [record.getMessage() for record in caplog.records if "no_such_thing" in record.getMessage()]
    assert len(lines) == 1
    assert "secret" not in caplog.text


def test_options_that_need_others(server: ScriptedServer) -> None:
    assert error(server.chat(stream_options={"include_usage": True}), 400)["param"] == "stream_options"
    assert error(server.chat(top_logprobs=2), 400)["param"] == "top_logprobs"
    assert error(server.chat(logprobs=True, top_logprobs=21), 400)["param"] == "top_logprobs"
    assert error(server.complete(logprobs=21), 400)["param"] == "logprobs"
    assert error(server.complete(n=3, best_of=2), 400)["param"] == "best_of"
    assert error(server.complete(best_of=129), 400)["param"] == "best_of"
    assert error(server.complete(best_of=2, stream=True), 400)["param"] == "best_of"
    assert error(server.complete(prompt=["x"] * 100, best_of=20), 400)["param"] == "prompt"
    assert error(server.complete(prompt_logprobs=21), 400)["param"] == "prompt_logprobs"
    assert error(server.complete(prompt_logprobs=0, stream=True), 400)["param"] == "prompt_logprobs"
    allowed = {"allowed_token_ids": [5], "guided_regex": "a"}
    assert error(server.chat(**allowed), 400)["param"] == "allowed_token_ids"
    assert error(server.complete(**allowed), 400)["param"] == "allowed_token_ids"
    both = {"functions": [{"name": "f"}], "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert error(server.chat(**both), 400)["param"] == "functions"
    named = {"functions": [{"name": "f"}], "function_call": {"name": "g"}}
    assert error(server.chat(**named), 400)["param"] == "function_call"
    assert error(server.complete(prompt=["x"] * 100, n=20), 400)["param"] == "prompt"
    assert error(server.chat(chat_template_kwargs={"messages": []}), 400)["param"] == "chat_template_kwargs"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'"x"',
        b"null",
        b'{"model": "demo", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "demo", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "demo", "temperature": NaN, "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "demo", "temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "demo", "seed": ' + b"9" * 5000 + b', "messages": [{"role": "user", "content": "x"}]}',
    ],
    ids=range(12),
)
def test_bodies_that_are_not_what_they_should_be(server: ScriptedServer, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    error(
        server.http.post(server.url + "/v1/chat/completions", content=body, headers=headers, timeout=30), 400
    )
    assert server.chat().status_code == 200


def test_a_body_must_be_json(server: ScriptedServer) -> None:
    url = server.url + "/v1/chat/completions"
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"):
        error(server.http.post(url, content=b"{}", headers={"content-type": kind}), 415)


def test_unknown_urls_and_methods(server: ScriptedServer) -> None:
    assert error(server.get("/v1/nothing"), 404)["code"] == "unknown_url"
    assert "GET /v1/chat/completions" in error(server.get("/v1/chat/completions"), 405)["message"]
    assert error(server.get("/v1/models/other"), 404)["code"] == "model_not_found"
    # All methods of a path are told, also where each has a route of its own.
    assert server.http.put(server.url + "/v1/responses/resp_1").headers["allow"] == "DELETE, GET"
    assert server.http.put(server.url + "/v1/completions").headers["allow"] == "POST"


# --- sizes -----------------------------------------------------------------------------------------


def test_a_body_that_is_too_large(make_server: MakeServer) -> None:
    server = make_server(max_body_bytes=10_000)
    assert error(server.chat(user="x" * 20_000), 413)["code"] == "request_too_large"

    def pieces() -> Any:  # no Content-Length: it has to be counted
        for _ in range(100):
            yield b" " * 1000

    response = server.http.post(
        server.url + "/v1/chat/completions", content=pieces(), headers={"content-type": "application/json"}
    )
    assert error(response, 413)["code"] == "request_too_large"
    assert server.chat().status_code == 200


def test_headers_have_a_limit(server: ScriptedServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        sent = 0
        try:
            while sent < 2_000_000:
                sent += connection.send(b"X-Filler: " + b"y" * 8000 + b"\r\n")
            answer = connection.recv(4096)
        except OSError:  # closed on us: as good
            answer = b"HTTP/1.1 400"
    assert answer.startswith(b"HTTP/1.1 4") or answer == b""
    assert server.get("/health").status_code == 200


# --- the engine ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_429_with_retry_after(make_server: MakeServer, stream: bool) -> None:
    server = make_server(engine={"error": Overloaded("The waiting queue is full.", retry_after=2.5)})
    response = server.chat(stream=stream)
    assert error(response, 429)["code"] == "queue_full"
    assert response.headers["retry-after"] == "3"
    with pytest.raises(openai.RateLimitError):
        server.client().completions.create(model=MODEL, prompt="x", stream=stream)
    assert server.metric('tokentrail_requests_total{model_name="demo",outcome="rejected"}') == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_is_503(make_server: MakeServer, stream: bool) -> None:
    server = make_server(engine={"error": EngineDead("The engine died 3 times in a row.")})
    assert error(server.chat(stream=stream), 503)["code"] == "engine_dead"
    with pytest.raises(openai.InternalServerError):
        server.client().completions.create(model=MODEL, prompt="x", stream=stream)


def test_what_the_engine_cannot_compute_is_400(make_server: MakeServer) -> None:
    server = make_server(
        engine={"error": InvalidRequest("Too much for the cache.", code="kv_cache_exceeded")}
    )
    assert error(server.chat(), 400)["code"] == "kv_cache_exceeded"
    assert error(server.chat(stream=True), 400)["code"] == "kv_cache_exceeded"


def test_an_error_in_the_middle_of_a_stream_ends_it(make_server: MakeServer) -> None:
    server = make_server(engine={"error": EngineDead("It died."), "error_after": 5})
    body = server.chat(stream=True).text
    events = body.strip().split("\n\n")
    assert '"content":"The"' in events[1]
    assert events[-1].startswith('data: {"error":{"message":"It died."')
    assert "[DONE]" not in body
    with (
        pytest.raises(openai.APIError, match="It died"),
        server.client().completions.create(model=MODEL, prompt="x", stream=True) as stream,
    ):
        list(stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_bug_is_500_and_says_nothing(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    words = ("the", "sec" + "ret", "prompt")

    def script(request: Any) -> list[int]:
        raise RuntimeError(" ".join(words))

    server = make_server(engine={"script": script})
    found = error(server.chat(stream=stream), 500)
    assert found["message"] == "The server had an internal error."
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
    assert server.engine.running == set()


def test_a_line_of_the_log_says_who_left_and_what_was_wrong() -> None:
    assert describe(ClientGone()) == "the client left (499)"
    assert describe(InvalidRequest("the text", param="top_p")) == "400 invalid_request_error (top_p)"
    assert describe(InvalidRequest("the text", param="a\nb")) == r"400 invalid_request_error ('a\nb')"
    assert describe(EngineDead("the text")) == "503 engine_dead"
    assert describe(ValueError("the text")) == "500"


def test_messages_have_tokens_and_a_prompt_has_some(server: ScriptedServer) -> None:
    assert "the messages have " in server.chat(max_tokens=0).json()["error"]["message"]
    assert "the prompt has " in server.complete(max_tokens=0).json()["error"]["message"]
