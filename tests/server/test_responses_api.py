"""OpenAI's Responses API: the unmodified `openai` client, the events on the wire, what is kept and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_engine import logprob
from scripted_model import CALL, PIECES, WEATHER, Scripted
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.answer.parts import TextParts
from tokentrail.protocol import EngineDead, Overloaded

TOOL: Any = {"type": "function", "strict": None, **WEATHER["function"]}
NOW: Any = {"type": "function", "name": "now", "parameters": None, "strict": None}
START = "<|im_start|>"


def post(server: ScriptedServer, path: str = "", **body: Any) -> httpx.Response:
    return server.post(f"/v1/responses{path}", {"model": MODEL, "input": "Hi", **body})


@pytest.fixture(scope="module")
def scripted(text_parts: TextParts) -> Iterator[Scripted]:
    made = Scripted(text_parts, responses_store=100)
    yield made
    made.server.close()


def ask(scripted: Scripted, says: str, **fields: Any) -> Any:
    scripted.says = says
    return scripted.server.client().responses.create(**{"model": MODEL, "input": "Hi", **fields})


def turns(scripted: Scripted) -> list[str]:
    """The prompt's messages."""
    return [part.removesuffix("<|im_end|>\n") for part in scripted.prompt.split(START)[1:]]


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    events = []
    for number, part in enumerate(response.text.removesuffix("\n\n").split("\n\n")):
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        assert events[-1].pop("sequence_number") == number
    return events


def test_a_response(server: ScriptedServer) -> None:
    response = server.client().responses.create(
        model=MODEL, input="Hi", instructions="Be brief.", metadata={"a": "b"}, user="u"
    )
    assert response.id.startswith("resp_")
    assert (response.status, response.model, response.object) == ("completed", MODEL, "response")
    assert response.output_text == TEXT
    (message,) = response.output
    assert (message.type, message.status) == ("message", "completed")
    assert (response.instructions, response.metadata, response.user) == ("Be brief.", {"a": "b"}, "u")
    request = server.engine.requests[-1]
    usage = response.usage
    assert usage is not None
    assert usage.input_tokens == len(request.prompt)
    assert usage.input_tokens_details.cached_tokens == len(request.prompt) // 2
    assert usage.output_tokens == len(server.tokens)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    extra: Any = response.model_extra
    assert extra["system_fingerprint"] == "fp_scripted"
    assert extra["seed"] == request.sampling.seed
    # Nothing is kept unless the server is told to.
    assert extra["store"] is False


def test_sampling(server: ScriptedServer) -> None:
    response = server.client().responses.create(
        model=MODEL,
        input="Hi",
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=3,
        extra_body={"seed": 3, "top_k": 7},
    )
    sampling = server.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.top_k) == (0.5, 0.25, 3, 7)
    assert sampling.max_tokens == 3
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.5, 0.25, 3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    message: Any = response.output[0]
    assert message.status == "incomplete"


def test_log_probabilities(server: ScriptedServer) -> None:
    fields: Any = {
        "model": MODEL,
        "input": "Hi",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    response = server.client().responses.create(**fields)
    message: Any = response.output[0]
    entries = message.content[0].logprobs
    assert [entry.logprob for entry in entries] == [logprob(token) for token in server.tokens]
    assert bytes(byte for entry in entries[:-1] for byte in entry.bytes).decode() == TEXT
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    streamed = [
        entry
        for event in events_of(post(server, stream=True, include=fields["include"], top_logprobs=2))
        if event["type"] == "response.output_text.delta"
        for entry in event["logprobs"]
    ]
    assert streamed == [entry.to_dict() for entry in entries]
    plain: Any = server.client().responses.create(model=MODEL, input="Hi").output[0]
    assert plain.content[0].logprobs == []


def test_the_exact_events_of_a_stream(make_server: MakeServer, text_parts: TextParts) -> None:
    tokens = text_parts.tokenizer.encode("Hi 🦊")
    server = make_server(engine={"script": lambda request: [*tokens, 2]})
    response = post(server, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    first, second, *events, last = events_of(response)
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert first["response"] == second["response"]
    assert (first["response"]["status"], first["response"]["output"]) == ("in_progress", [])
    id = first["response"]["id"]
    assert response.headers["x-request-id"] == id
    item = {"id": f"msg_{id[5:]}0000", "type": "message", "role": "assistant"}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    done = {**part, "text": "Hi 🦊"}
    finished = {**item, "status": "completed", "content": [done]}

    def delta(text: str) -> dict[str, Any]:
        return {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}

    assert events == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": part},
        delta("Hi"),
        delta(" "),
        delta("🦊"),
        {"type": "response.output_text.done", **place, "text": "Hi 🦊", "logprobs": []},
        {"type": "response.content_part.done", **place, "part": done},
        {"type": "response.output_item.done", "output_index": 0, "item": finished},
    ]
    assert last["type"] == "response.completed"
    assert last["response"]["output"] == [finished]
    assert last["response"]["usage"]["output_tokens"] == len(tokens) + 1
    assert events_of(post(server, stream=True, max_output_tokens=1))[-1]["type"] == "response.incomplete"


def test_a_stream_of_thoughts_text_and_calls(scripted: Scripted) -> None:
    scripted.says = f"<think>They want it.</think>Let me look.{CALL}"
    with scripted.server.client().responses.stream(model=MODEL, input="Hi", tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
    for kind in ("reasoning_text", "output_text", "function_call_arguments"):
        assert kinds.count(f"response.{kind}.delta") >= 1
        assert kinds.count(f"response.{kind}.done") == 1
    thoughts, message, call = final.output
    assert (thoughts.type, message.type, call.type) == ("reasoning", "message", "function_call")
    assert final.output_text == "Let me look."
    assert json.loads(call.arguments) == {"city": "Paris 🗼", "days": 2}
    whole = ask(scripted, scripted.says, tools=[TOOL])
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    assert final.usage == whole.usage
    # Ids are of the response.
    assert without_ids(whole.output) == without_ids(final.output)
    assert thoughts.content is not None
    assert thoughts.content[0].text == "They want it."


def without_ids(items: Any) -> list[dict[str, Any]]:
    dumped = [item if isinstance(item, dict) else json.loads(item.to_json()) for item in items]
    for item in dumped:
        for key in ("id", "call_id", "parsed_arguments"):
            item.pop(key, None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return dumped


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(says=st.lists(PIECES, min_size=1, max_size=6).map("".join), seed=st.integers(0, 1000))
def test_streams_joined_are_the_whole(scripted: Scripted, says: str, seed: int) -> None:
    cuts = random.Random(seed)
    scripted.server.engine.cut = lambda: cuts.randint(1, 5)
    scripted.says = says
    whole = post(scripted.server, tools=[TOOL]).json()
    events = events_of(post(scripted.server, stream=True, tools=[TOOL]))
    written: dict[int, str] = {}
    done: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            written[event["output_index"]] = written.get(event["output_index"], "") + event["delta"]
        elif event["type"] == "response.output_item.done":
            done[event["output_index"]] = event["item"]
    last = events[-1]["response"]
    assert last["output"] == [done[at] for at in range(len(done))]
    for at, item in done.items():
        assert written.get(at, "") == text_of(item)
    assert last["status"] == whole["status"]

    assert without_ids(last["output"]) == without_ids(whole["output"])


def text_of(item: dict[str, Any]) -> str:
    return item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]


def test_items_become_messages(scripted: Scripted) -> None:
    items: Any = [
        {"role": "developer", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "How is"}, {"type": "input_text", "text": "it?"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "type": "reasoning",
            "id": "rs_2",
            "summary": [{"type": "summary_text", "text": "x"}],
            "encrypted_content": "x",
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
        },
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city": "Köln"}',
        },
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "Rain."}],
        },
        {"role": "user", "content": "Thanks."},
    ]
    ask(scripted, "x", input=items, instructions="Be brief.", tools=[TOOL])
    assert turns(scripted)[:-1] == [
        "system\nBe brief.\nBe kind.",
        "user\nHow is\nit?",
        "assistant\nLet me look.[get_weather Köln]hm</think>",
        "tool\nRain.",
        "user\nThanks.",
    ]
    assert '"name": "get_weather"' in scripted.prompt


def test_counted_tokens(scripted: Scripted) -> None:
    first = ask(scripted, "Well.", tools=[TOOL])
    fields: Any = {
        "input": "And?",
        "previous_response_id": first.id,
        "instructions": "Be brief.",
        "tools": [TOOL],
    }
    counted = scripted.server.client().responses.input_tokens.count(model=MODEL, **fields)
    assert counted.input_tokens == ask(scripted, "x", **fields).usage.input_tokens


def test_forms_and_choices_become_grammars(scripted: Scripted) -> None:
    def grammar(**fields: Any) -> Any:
        ask(scripted, "x", **{"tools": [TOOL, NOW], **fields})
        return scripted.requests[-1].grammar

    assert grammar() is None
    assert grammar(tool_choice="none") is None
    assert "<tool>" not in scripted.prompt
    assert "get_weather" in grammar(tool_choice="required")
    assert "get_weather" not in grammar(tool_choice={"type": "function", "name": "now"})
    allowed: Any = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "now"}],
    }
    assert "get_weather" not in grammar(tool_choice=allowed)
    assert grammar(tool_choice={**allowed, "mode": "auto"}) is None
    schema = {"type": "object", "properties": {"wonder": {"type": "integer"}}}
    format: Any = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert "wonder" in grammar(tools=[], text={"format": format})
    assert grammar(tools=[], text={"format": {"type": "json_object"}}) is not None
    assert grammar(tools=[], text={"format": {"type": "text"}, "verbosity": "low"}) is None
    ask(scripted, "x", reasoning={"effort": "none", "summary": "auto"})
    assert scripted.prompt.endswith("</think>\n\n")


def test_the_client_parses(scripted: Scripted) -> None:
    class City(pydantic.BaseModel):
        name: str
        people: int

    scripted.says = '{"name":"Köln","people":1}'
    client = scripted.server.client()
    response = client.responses.parse(model=MODEL, input="Hi", text_format=City)
    assert response.output_parsed == City(name="Köln", people=1)
    with client.responses.stream(model=MODEL, input="Hi", text_format=City) as stream:
        assert stream.until_done().get_final_response().output_parsed == City(name="Köln", people=1)

    class Weather(pydantic.BaseModel):
        """The weather."""

        city: str
        days: int

    scripted.says = CALL.replace("get_weather", "Weather")
    tool = openai.pydantic_function_tool(Weather)
    parsed: Any = client.responses.parse(model=MODEL, input="Hi", tools=[tool]).output[0]
    assert parsed.parsed_arguments == Weather(city="Paris 🗼", days=2)


async def test_the_asynchronous_client(scripted: Scripted) -> None:
    scripted.says = "Well."
    client = scripted.server.async_client()
    first = await client.responses.create(model=MODEL, input="One?", instructions="Be brief.")
    stream = await client.responses.create(
        model=MODEL, input="Two?", previous_response_id=first.id, stream=True
    )
    events = [event async for event in stream]
    assert events[-1].type == "response.completed"
    assert turns(scripted)[:-1] == ["user\nOne?", "assistant\nWell.", "user\nTwo?"]
    second = await client.responses.retrieve(events[-1].response.id)
    assert second.to_dict() == events[-1].response.to_dict()
    listed = [item.id async for item in client.responses.input_items.list(second.id)]
    assert len(listed) == 1
    await client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(second.id)
    await client.close()


def test_a_conversation_that_is_kept(scripted: Scripted) -> None:
    client = scripted.server.client()
    first = ask(scripted, f"<think>hm</think>{CALL}", tools=[TOOL], input="How is the weather?")
    call = first.output[-1]
    assert first.to_dict()["store"] is True
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}]
    second = ask(scripted, "It rains.", tools=[TOOL], input=result, previous_response_id=first.id)
    assert turns(scripted)[:-1] == [
        "user\nHow is the weather?",
        "assistant\n[get_weather Paris 🗼]hm</think>",
        "tool\nRain.",
    ]
    assert second.previous_response_id == first.id
    third = ask(scripted, "Yes.", input="Sure?", previous_response_id=second.id)
    assert turns(scripted)[-3:-1] == ["assistant\nIt rains.", "user\nSure?"]
    # The same, said with references.
    listed = client.responses.input_items.list(first.id).data
    references: Any = [*listed[:1], *({"type": "item_reference", "id": item.id} for item in first.output)]
    ask(scripted, "x", input=[*references, *result])
    assert turns(scripted)[0] == "user\nHow is the weather?"
    assert turns(scripted)[2] == "tool\nRain."
    (output,) = client.responses.input_items.list(second.id).data
    assert (output.type, output.to_dict()["output"]) == ("function_call_output", "Rain.")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(third.id)
    # One that is gone takes what went on from it along.
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match=first.id) as caught:
        ask(scripted, "x", previous_response_id=third.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(ask(scripted, "x", store=False).id)


def test_pages_of_input_items(scripted: Scripted) -> None:
    client = scripted.server.client()
    items: Any = [{"role": "user", "content": str(number)} for number in range(5)]
    id = ask(scripted, "x", input=items).id

    def texts(**options: Any) -> list[str]:
        return [item.content[0].text for item in client.responses.input_items.list(id, **options)]

    assert texts(order="asc", limit=2) == ["0", "1", "2", "3", "4"]  # the client turns pages
    assert texts() == ["4", "3", "2", "1", "0"]
    page = client.responses.input_items.list(id, order="asc", limit=2)
    assert page.has_more
    after = client.responses.input_items.list(id, order="asc", after=page.data[-1].id)
    assert len(after.data) == 3
    for query in ("limit=0", "limit=101", "order=up", "after=x"):
        assert scripted.server.get(f"/v1/responses/{id}/input_items?{query}").status_code == 400


def test_keys_do_not_see_each_others(make_server: MakeServer) -> None:
    server = make_server(api_keys=("sk-one", "sk-two"), responses_store=10)
    kept = server.client("sk-one").responses.create(model=MODEL, input="Hi")
    assert server.client("sk-one").responses.retrieve(kept.id).output_text == TEXT
    with pytest.raises(openai.NotFoundError):
        server.client("sk-two").responses.retrieve(kept.id)
    with pytest.raises(openai.NotFoundError):
        server.client("sk-two").responses.delete(kept.id)
    with pytest.raises(openai.BadRequestError):
        server.client("sk-two").responses.create(model=MODEL, input="Hi", previous_response_id=kept.id)


def test_a_server_that_keeps_nothing_says_so(server: ScriptedServer) -> None:
    response = post(server, previous_response_id="resp_1")
    assert response.status_code == 400
    assert "--responses-store" in response.json()["error"]["message"]
    missing = server.get("/v1/responses/resp_1")
    assert missing.status_code == 404
    assert "--responses-store" in missing.json()["error"]["message"]
    kept = post(server, store=True).json()
    assert kept["store"] is False
    assert server.get(f"/v1/responses/{kept['id']}").status_code == 404


def test_old_turns_give_way(scripted: Scripted) -> None:
    items: Any = []
    for number in range(20):
        items += [
            {"role": "user", "content": f"question {number} " + "word " * 30},
            {"role": "assistant", "content": f"answer {number}"},
        ]
    items.append({"role": "user", "content": "And now?"})
    fields: Any = {"input": items, "instructions": "Be brief.", "max_output_tokens": 50}
    with pytest.raises(openai.BadRequestError, match="your input resulted in"):
        ask(scripted, "x", **fields)
    ask(scripted, "x", truncation="auto", **fields)
    told = turns(scripted)[:-1]
    assert told[0] == "system\nBe brief."
    assert told[1].startswith("user\nquestion")
    assert told[-1] == "user\nAnd now?"
    assert len(told) % 2 == 0
    used = len(scripted.requests[-1].prompt)
    assert 512 - 50 - 60 < used <= 512 - 50, "as much as fits is kept"
    # What fits is left alone.
    ask(scripted, "x", truncation="auto", **{**fields, "input": items[-5:]})
    assert len(turns(scripted)) == 7


def test_trouble(make_server: MakeServer) -> None:
    server = make_server(engine={"error": Overloaded("The queue is full.")})
    for stream in (False, True):
        response = post(server, stream=stream)
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "queue_full"
    dead = EngineDead("The engine is gone.")
    broken = make_server(engine={"error": dead, "error_after": 3, "delay": 0.01}, responses_store=5)
    last = events_of(post(broken, stream=True))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "The engine is gone."}
    assert broken.get(f"/v1/responses/{last['response']['id']}").status_code == 404


IMAGE = {"type": "input_image", "image_url": "data:,"}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "should be"),
    ({"input": []}, "input", "must not be empty"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "'tool'"),
    ({"input": [{"role": "user"}]}, "input[0].content", "must provide"),
    ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]", "text only"),
    ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type", "'web_search_call'"),
    (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        "input[0].call_id",
        "no function_call",
    ),
    ({"input": [{"type": "item_reference", "id": "msg_9"}]}, "input[0].id", "'msg_9'"),
    ({"previous_response_id": "resp_9"}, "previous_response_id", "'resp_9'"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "only functions"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "must provide"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tools": [NOW], "tool_choice": "often"}, "tool_choice", "'often'"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name", "'x'"),
    ({"tools": [NOW], "tool_choice": {"type": "file_search"}}, "tool_choice.type", "'file_search'"),
    (
        {
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "not": {}}}],
            "tool_choice": "required",
        },
        "tools[0].parameters",
        '"not"',
    ),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "'xml'"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "must provide"),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}},
        "text.format.schema",
        '"not"',
    ),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "'huge'"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary", "'long'"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be"),
    ({"max_output_tokens": 10_000}, "max_output_tokens", "as max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"temperature": 3}, "temperature", "[0, 2]"),
    ({"truncation": "sometimes"}, "truncation", "'sometimes'"),
    ({"background": True}, "background", "Stream"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "instructions"),
    ({"metadata": {"a": 1}}, "metadata.a", "a string"),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG)
def test_what_is_wrong_is_named(scripted: Scripted, fields: dict[str, Any], param: str, words: str) -> None:
    for stream in (False, True):
        response = post(scripted.server, **{**fields, "stream": stream})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param
        assert words in error["message"]


def test_the_openapi_document_describes_it(server: ScriptedServer) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    schema = paths["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) == {"model", "input"}
    assert {"get", "delete"} == set(paths["/v1/responses/{id}"])
