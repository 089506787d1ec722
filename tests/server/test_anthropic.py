"""Anthropic's dialect: the unmodified `anthropic` client, its events on the wire, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_engine import engine_info
from scripted_model import CALL, PIECES, WEATHER, Scripted
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.answer.parts import TextParts
from tokentrail.protocol import EngineDead, Overloaded, TokentrailError
from tokentrail.server.anthropic.messages import input_of, signature_of

HELLO: Any = [{"role": "user", "content": "Hi"}]
TOOL: Any = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": WEATHER["function"]["parameters"],
}
NOW: Any = {"name": "now", "input_schema": {"type": "object"}}
THINK: Any = {"type": "adaptive"}


def client(server: ScriptedServer, key: str = "none", **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key=key, base_url=server.url, max_retries=0, **options)


def post(server: ScriptedServer, path: str = "/v1/messages", **body: Any) -> httpx.Response:
    return server.post(path, {"model": MODEL, "messages": HELLO, "max_tokens": 100, **body})


@pytest.fixture(scope="module")
def scripted(text_parts: TextParts) -> Iterator[Scripted]:
    made = Scripted(text_parts)
    yield made
    made.server.close()


def ask(scripted: Scripted, says: str, **fields: Any) -> Any:
    scripted.says = says
    return client(scripted.server).messages.create(
        **{"model": MODEL, "messages": HELLO, "max_tokens": 200, **fields}
    )


def test_a_message(server: ScriptedServer) -> None:
    message = client(server).messages.create(
        model=MODEL, max_tokens=100, messages=HELLO, system="Be brief.", metadata={"user_id": "u"}
    )
    assert message.id.startswith("msg_")
    assert (message.role, message.type, message.model) == ("assistant", "message", MODEL)
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": TEXT}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    request = server.engine.requests[-1]
    usage = message.usage
    # What the prefix cache had is counted apart.
    assert usage.cache_read_input_tokens == len(request.prompt) // 2
    assert usage.input_tokens + usage.cache_read_input_tokens == len(request.prompt)
    assert usage.output_tokens == len(server.tokens)
    assert message._request_id == message.id
    extra: Any = message.model_extra
    assert extra["system_fingerprint"] == "fp_scripted"
    assert extra["seed"] == request.sampling.seed


def test_sampling(server: ScriptedServer) -> None:
    body = {"temperature": 0.5, "top_k": 7, "top_p": 0.25, "seed": 3, "stop_sequences": ["jumps", "zzz"]}
    message = client(server).messages.create(model=MODEL, max_tokens=50, messages=HELLO, extra_body=body)
    sampling = server.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.5, 7, 0.25, 3)
    assert sampling.max_tokens == 50
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "jumps")
    assert message.content[0].to_dict()["text"] == TEXT[: TEXT.index("jumps")]
    short = client(server).messages.create(model=MODEL, max_tokens=2, messages=HELLO)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)


def test_what_does_not_fit_ends_at_the_context(make_server: MakeServer, text_parts: TextParts) -> None:
    tokens = text_parts.tokenizer.encode("word " * 200)
    server = make_server(engine={"script": lambda request: tokens, "info": engine_info(max_model_len=64)})
    for stream in (False, True):
        if stream:
            with client(server).messages.stream(model=MODEL, max_tokens=2000, messages=HELLO) as events:
                message: Any = events.get_final_message()
        else:
            message = client(server).messages.create(model=MODEL, max_tokens=2000, messages=HELLO)
        assert message.stop_reason == "model_context_window_exceeded"
        usage = message.usage
        assert usage.input_tokens + usage.cache_read_input_tokens + usage.output_tokens == 64


def test_the_exact_events_of_a_stream(make_server: MakeServer, text_parts: TextParts) -> None:
    tokens = text_parts.tokenizer.encode("Hi 🦊")
    server = make_server(engine={"script": lambda request: [*tokens, 2]})
    response = post(server, stream=True, seed=4)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = []
    for part in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    prompt = len(server.engine.requests[-1].prompt)
    usage = {
        "input_tokens": prompt - prompt // 2,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": prompt // 2,
        "output_tokens_details": {"thinking_tokens": 0},
    }
    message = events[0]["message"]
    assert response.headers["request-id"] == message["id"]

    def delta(text: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}

    assert events == [
        {
            "type": "message_start",
            "message": {
                "id": message["id"],
                "type": "message",
                "role": "assistant",
                "model": MODEL,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {**usage, "output_tokens": 0},
                "seed": 4,
                "system_fingerprint": "fp_scripted",
            },
        },
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        delta("Hi"),
        delta(" "),
        delta("🦊"),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**usage, "output_tokens": len(tokens) + 1},
        },
        {"type": "message_stop"},
    ]


def test_a_stream_of_thoughts_text_and_calls(scripted: Scripted) -> None:
    scripted.says = f"<think>They want it.</think>Let me look.{CALL}"
    with client(scripted.server).messages.stream(
        model=MODEL, max_tokens=200, messages=HELLO, tools=[TOOL], thinking=THINK
    ) as stream:
        events = list(stream)
        message = stream.get_final_message()
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)
    thinking, text, call = (block.to_dict() for block in message.content)
    assert thinking == {
        "type": "thinking",
        "thinking": "They want it.",
        "signature": signature_of("They want it."),
    }
    assert text == {"type": "text", "text": "Let me look."}
    assert (call["type"], call["name"]) == ("tool_use", "get_weather")
    assert call["input"] == {"city": "Paris 🗼", "days": 2}
    assert call["id"].startswith("call_")
    assert message.stop_reason == "tool_use"
    whole = ask(scripted, scripted.says, tools=[TOOL], thinking=THINK)
    whole.content[2].id = call["id"]
    details = whole.usage.output_tokens_details
    assert 0 < details.thinking_tokens < whole.usage.output_tokens
    assert message.usage.output_tokens_details == details
    assert [block.to_dict() for block in whole.content] == [thinking, text, call]
    assert whole.stop_reason == "tool_use"


def test_thoughts_that_are_not_to_be_shown(scripted: Scripted) -> None:
    hidden: Any = {**THINK, "display": "omitted"}
    message = ask(scripted, "<think>Hm.</think>Yes.", thinking=hidden)
    assert message.content[0].to_dict() == {
        "type": "thinking",
        "thinking": "",
        "signature": signature_of("Hm."),
    }
    response = post(scripted.server, thinking=hidden, stream=True)
    assert "thinking_delta" not in response.text
    assert signature_of("Hm.") in response.text


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(says=st.lists(PIECES, min_size=1, max_size=6).map("".join), seed=st.integers(0, 1000))
def test_streams_joined_are_the_whole(scripted: Scripted, says: str, seed: int) -> None:
    fields: Any = {"tools": [TOOL], "thinking": {"type": "adaptive"}}
    cuts = random.Random(seed)
    scripted.server.engine.cut = lambda: cuts.randint(1, 5)
    scripted.says = says
    whole = post(scripted.server, max_tokens=200, **fields).json()
    events = post(scripted.server, stream=True, max_tokens=200, **fields).text.split("\n\n")
    blocks: list[dict[str, Any]] = []
    for part in events[:-1]:
        event = json.loads(part.split("data: ")[1])
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
            assert event["index"] == len(blocks) - 1
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            field = {"signature_delta": "signature", "input_json_delta": "json"}.get(
                delta["type"], delta["type"].removesuffix("_delta")
            )
            blocks[event["index"]][field] += delta.get("partial_json", delta.get(field))
    assert json.loads(events[-3].split("data: ")[1])["delta"]["stop_reason"] == whole["stop_reason"]

    for block in blocks:
        written = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = input_of(written)
    # Ids of calls are drawn.
    for block in (*blocks, *whole["content"]):
        block.pop("id", None)
    assert blocks == whole["content"]


def test_arguments_that_are_cut_off_or_no_object() -> None:
    assert input_of("") == {}
    assert input_of('{"a": 1, "b": {"c": [1, 2') == {"a": 1, "b": {"c": [1, 2]}}
    assert input_of("[1]") == {"arguments": "[1]"}
    assert input_of('{"a": nonsense}') == {"arguments": '{"a": nonsense}'}


def test_a_conversation_with_blocks_of_all_kinds(scripted: Scripted) -> None:
    ephemeral: Any = {"type": "ephemeral"}
    messages: Any = [
        {"role": "user", "content": "How is"},
        {"role": "user", "content": [{"type": "text", "text": "the weather?", "cache_control": ephemeral}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Köln"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "Rain."}],
                    "is_error": False,
                },
                {"type": "text", "text": "And tomorrow?"},
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "A forecast."},
                    "title": "News",
                },
            ],
        },
    ]
    system: Any = [
        {"type": "text", "text": "One."},
        {"type": "text", "text": "Two.", "cache_control": ephemeral},
    ]
    ask(scripted, "Sun.", messages=messages, system=system, tools=[TOOL], cache_control=ephemeral)
    prompt = scripted.prompt
    assert '"name": "get_weather"' in prompt
    start = "<|im_start|>"
    expected = [
        f"{start}system\nOne.\nTwo.",
        f"{start}user\nHow is\nthe weather?",
        f"{start}assistant\nLet me look.[get_weather Köln]hm</think>",
        f"{start}tool\nRain.",
        f"{start}user\nAnd tomorrow?\nNews\nA forecast.",
    ]
    assert prompt[prompt.index(start) :].startswith("<|im_end|>\n".join(expected))


def test_an_answer_begun_by_the_client(scripted: Scripted) -> None:
    begun: Any = [*HELLO, {"role": "assistant", "content": "The answer is"}]
    ask(scripted, " 42.", messages=begun)
    assert scripted.prompt.endswith("assistant\nThe answer is")
    ask(scripted, "Yes.", messages=[*HELLO, {"role": "assistant", "content": ""}])
    assert "<|im_start|>assistant\n<think>\n\n</think>" in scripted.prompt


def test_tools_and_thoughts_become_grammars(scripted: Scripted) -> None:
    def grammar(**fields: Any) -> Any:
        ask(scripted, "x", **{"tools": [TOOL, NOW], **fields})
        return scripted.requests[-1].grammar

    assert grammar() is None
    assert grammar(tool_choice={"type": "auto"}) is None
    assert grammar(tool_choice={"type": "none"}) is None
    assert "<tool>" not in scripted.prompt
    assert "get_weather" in grammar(tool_choice={"type": "any"})
    named = grammar(tool_choice={"type": "tool", "name": "now", "disable_parallel_tool_use": True})
    assert "get_weather" not in named
    assert "think" in grammar(tool_choice={"type": "any"}, thinking=THINK)
    config: Any = {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert "object" in grammar(tools=[], output_config=config)
    assert grammar(tools=[], thinking={"type": "adaptive"}) is None
    assert not scripted.prompt.endswith("</think>\n\n")
    # As with Anthropic, nobody thinks unless asked to.
    ask(scripted, "x")
    assert scripted.prompt.endswith("</think>\n\n")


def test_a_budget_is_kept_by_who_does_not_think(server: ScriptedServer) -> None:
    budget: Any = {"type": "enabled", "budget_tokens": 50}
    message = client(server).messages.create(model=MODEL, max_tokens=100, messages=HELLO, thinking=budget)
    assert message.content[0].to_dict()["text"] == TEXT


def test_the_clients_own_loop_of_tools(scripted: Scripted) -> None:
    """It tries to have the conversation kept here, and does without when that is refused."""
    asked: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """The weather in a city."""
        asked.append(city)
        scripted.says = "It rains."
        return "Rain."

    for stream in (False, True):
        scripted.says = CALL
        runner: Any = client(scripted.server).beta.messages.tool_runner(
            model=MODEL, max_tokens=100, messages=HELLO, tools=[get_weather], stream=stream
        )
        messages = [message.get_final_message() if stream else message for message in runner]
        assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
        assert messages[-1].content[0].text == "It rains."
        assert "tool\nRain." in scripted.prompt
    assert asked == ["Paris 🗼"] * 2


def test_the_client_parses(scripted: Scripted) -> None:
    class City(pydantic.BaseModel):
        name: str

    scripted.says = '{"name":"Köln"}'
    message = client(scripted.server).messages.parse(
        model=MODEL, max_tokens=100, messages=HELLO, output_format=City
    )
    assert message.parsed_output == City(name="Köln")


def test_count_tokens(scripted: Scripted) -> None:
    fields: Any = {"model": MODEL, "messages": HELLO, "system": "Be brief.", "tools": [TOOL]}
    count = client(scripted.server).messages.count_tokens(**fields).input_tokens
    ask(scripted, "x", **fields)
    assert count == len(scripted.requests[-1].prompt)
    wrong = scripted.server.post("/v1/messages/count_tokens", {"model": "other", "messages": HELLO})
    assert wrong.status_code == 404
    assert wrong.json()["error"]["type"] == "not_found_error"


def test_models(make_server: MakeServer) -> None:
    server = make_server(served_model_names=("a", "org/b", "c"))
    ours = client(server)
    models = list(ours.models.list(limit=2))  # which turns pages
    assert [model.id for model in models] == ["a", "org/b", "c"]
    assert models[0].max_input_tokens == 512
    assert [model.id for model in ours.models.list(before_id="c", limit=1).data] == ["org/b"]
    assert ours.models.retrieve("org/b").display_name == "org/b"
    with pytest.raises(anthropic.NotFoundError) as caught:
        ours.models.retrieve("d")
    assert caught.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "The model `d` does not exist or you do not have access to it.",
        },
        "request_id": caught.value.request_id,
    }
    # Others get theirs.
    assert [model.id for model in server.client().models.list()] == ["a", "org/b", "c"]
    assert server.get("/v1/models").json()["object"] == "list"


async def test_the_asynchronous_client(scripted: Scripted) -> None:
    scripted.says = CALL
    ours = anthropic.AsyncAnthropic(api_key="none", base_url=scripted.server.url, max_retries=0)
    fields: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 100, "tools": [TOOL]}
    whole = await ours.messages.create(**fields)
    async with ours.messages.stream(**fields) as stream:
        pieces = [event.partial_json async for event in stream if event.type == "input_json"]
        message = await stream.get_final_message()
    assert json.loads("".join(pieces)) == {"city": "Paris 🗼", "days": 2}
    assert message.content[0].to_dict()["input"] == whole.content[0].to_dict()["input"]
    names = [event.type async for event in await ours.messages.create(stream=True, **fields)]
    assert names[0] == "message_start"
    assert (await ours.messages.count_tokens(model=MODEL, messages=HELLO)).input_tokens > 0
    await ours.close()


def test_keys(make_server: MakeServer) -> None:
    server = make_server(api_keys=("sk-right",))
    assert client(server, "sk-right").messages.create(model=MODEL, max_tokens=5, messages=HELLO).content
    with pytest.raises(anthropic.AuthenticationError) as caught:
        client(server, "sk-wrong").messages.create(model=MODEL, max_tokens=5, messages=HELLO)
    body: Any = caught.value.body
    assert body["error"]["type"] == "authentication_error"
    assert body["request_id"] == caught.value.request_id


BUSY: list[tuple[TokentrailError, int, str]] = [
    (Overloaded("The queue is full."), 529, "overloaded_error"),
    (EngineDead("The engine is gone."), 503, "api_error"),
]


@pytest.mark.parametrize(("error", "status", "kind"), BUSY)
def test_trouble(make_server: MakeServer, error: TokentrailError, status: int, kind: str) -> None:
    server = make_server(engine={"error": error})
    for stream in (False, True):
        response = post(server, stream=stream)
        assert response.status_code == status
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["type"] == kind
        assert response.json()["request_id"] == response.headers["request-id"]
    broken = make_server(engine={"error": error, "error_after": 3, "delay": 0.01})
    events = post(broken, stream=True).text.split("\n\n")
    assert events[-2].startswith("event: error\ndata: ")
    assert json.loads(events[-2].split("data: ")[1])["error"]["type"] == kind
    with (
        pytest.raises(anthropic.APIStatusError),
        client(broken).messages.stream(model=MODEL, max_tokens=100, messages=HELLO) as stream_of_events,
    ):
        stream_of_events.until_done()


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_9", "content": "x"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
    ({"messages": []}, "messages must not be empty"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content must not be empty"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role must be user, assistant or system"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0] is of type 'image'"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "provide messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, "no tool_use block with the id 'toolu_9'"),
    ({"messages": [*HELLO, {"role": "assistant", "content": [USE]}]}, "must not end with a tool_use block"),
    ({"system": [IMAGE]}, "system[0] is of type 'image'"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0] is of type 'web_search"),
    ({"tools": [{"name": "f"}]}, "provide tools[0].input_schema"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "required"}},
        "tool_choice.type must be auto, any, tool or none",
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}},
        "tool_choice.name must be that of a tool",
    ),
    ({"tool_choice": {"type": "any"}}, "tool_choice is any, but there are no tools"),
    (
        {
            "tools": [{"name": "f", "input_schema": {"type": "object", "not": {}}}],
            "tool_choice": {"type": "any"},
        },
        "tools[0].input_schema",
    ),
    ({"thinking": {"type": "enabled"}}, "provide thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "from 1 to below max_tokens (100), not 100"),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens is not supported"),
    ({"thinking": {"type": "often"}}, "thinking.type must be"),
    ({"temperature": 3}, "temperature must be in [0, 2]"),
    ({"temperature": "1"}, "'temperature'"),
    ({"stop_sequences": [""]}, "stop_sequences must be"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort must be one of"),
    ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type must be"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
    ({"messages": [{"role": "user", "content": "word " * 600}]}, "your messages resulted in"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG)
def test_what_is_wrong_is_named(scripted: Scripted, fields: dict[str, Any], words: str) -> None:
    response = post(scripted.server, **fields)
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert words in body["error"]["message"]


def test_paths_and_bodies_that_are_wrong(server: ScriptedServer) -> None:
    missing = server.get("/v1/messages/batches")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    wrong = server.http.post(
        server.url + "/v1/messages", content=b"{", headers={"content-type": "text/plain"}
    )
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (415, "invalid_request_error")
    # Everywhere, to who says that this is what they speak.
    other = server.get("/v1/nothing", headers={"anthropic-version": "2023-06-01"})
    assert (other.status_code, other.json()["type"]) == (404, "error")
    assert server.get("/v1/nothing").json()["error"]["code"] == "unknown_url"


def test_the_openapi_document_describes_it(server: ScriptedServer) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    schema = paths["/v1/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) == {"model", "messages", "max_tokens"}
    assert "/v1/messages/count_tokens" in paths
    assert "OpenAI" in paths["/v1/models"]["get"]["tags"]
