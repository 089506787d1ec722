"""Tool calls and thoughts over HTTP: the unmodified `openai` client, scripted answers, and the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from real_server import RealServer
from scripted_model import CALL, NOW, QUESTION, WEATHER, Scripted

from tokentrail.answer.parsing import Formats
from tokentrail.answer.parts import TextParts

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def scripted(text_parts: TextParts) -> Iterator[Scripted]:
    made = Scripted(text_parts)
    yield made
    made.server.close()


def joined(stream: Any) -> dict[str, Any]:
    """A stream as the message that it adds up to."""
    found: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "finish": None}
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            found["content"] += delta.content or ""
            found["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
            assert getattr(delta, "reasoning", None) == getattr(delta, "reasoning_content", None)
            for piece in delta.tool_calls or ():
                if piece.id:
                    assert piece.index == len(found["calls"]), "calls come one after the other"
                    assert piece.type == "function"
                    assert piece.function.arguments == ""
                    found["calls"].append([piece.function.name, ""])
                else:
                    assert piece.function.name is None
                    found["calls"][piece.index][1] += piece.function.arguments
            if choice.finish_reason:
                assert found["finish"] is None
                found["finish"] = choice.finish_reason
    return found


def whole(answer: Any) -> dict[str, Any]:
    choice = answer.choices[0]
    message = choice.message
    return {
        "content": message.content or "",
        "reasoning_content": getattr(message, "reasoning_content", None) or "",
        "calls": [[call.function.name, call.function.arguments] for call in message.tool_calls or ()],
        "finish": choice.finish_reason,
    }


ANSWERS = [
    "Just an answer.",
    CALL,
    f"Let me look.\n{CALL}\n{CALL.replace('Paris', 'Köln')}",
    "<think>\nThey want the weather.\n</think>\n\nIt is fine.",
    f"<think>\nI call <tool_call>.\n</think>\n\n{CALL}",
    "<think>\nNever done",
    "<tool_call>broken",
]


@pytest.mark.parametrize("says", ANSWERS)
def test_a_stream_is_the_whole_in_pieces(scripted: Scripted, says: str) -> None:
    fields: Any = {"tools": [WEATHER, NOW]}
    answer = scripted.ask(says, **fields)
    found = whole(answer)
    assert joined(scripted.ask(says, stream=True, **fields)) == found
    if CALL in says:
        assert found["finish"] == "tool_calls"
        assert json.loads(found["calls"][0][1]) == {"city": "Paris 🗼", "days": 2}
        if says == CALL:
            assert answer.choices[0].message.content is None
    else:
        assert found["finish"] == "stop"
        assert not found["calls"]
    if says.startswith("<think>"):
        assert found["reasoning_content"]
        assert "think" not in found["content"]
    logged = scripted.ask(says, logprobs=True, **fields).choices[0]
    assert "".join(entry.token for entry in logged.logprobs.content).startswith(says[:5])


def test_answers_in_channels(text_parts: TextParts) -> None:
    scripted = Scripted(text_parts, Formats.of(None, "openai", "openai"))
    try:
        thoughts = "<|channel|>analysis<|message|>Well, well.<|end|><|start|>assistant"
        for says, content, calls in (
            (f"{thoughts}<|channel|>final<|message|>It rains.", "It rains.", []),
            (
                f'{thoughts} to=functions.now<|channel|>commentary json<|message|>{{"a": 1}}',
                "",
                [["now", '{"a": 1}']],
            ),
        ):
            # Thoughts are told apart whether there are tools or not.
            for fields in ({}, {"tools": [NOW]}):
                found = whole(scripted.ask(says, **fields))
                assert joined(scripted.ask(says, stream=True, **fields)) == found
                assert (found["reasoning_content"], found["content"]) == ("Well, well.", content)
                assert found["calls"] == calls
    finally:
        scripted.server.close()


def test_without_tools_calls_are_text(scripted: Scripted) -> None:
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        found = whole(scripted.ask(CALL, **fields))
        assert found["content"] == CALL
        assert not found["calls"]
        assert "<tool>" not in scripted.prompt
    scripted.ask(CALL, tools=[WEATHER])
    assert '"name": "get_weather"' in scripted.prompt


def test_what_the_prompt_says_about_thoughts(scripted: Scripted) -> None:
    def ask(says: str, **fields: Any) -> dict[str, Any]:
        return whole(scripted.ask(says, **fields))

    begun = {"extra_body": {"chat_template_kwargs": {"begin_thinking": True}}}
    assert ask("Well.\n</think>\n\nYes.", **begun) == {
        "content": "Yes.",
        "reasoning_content": "Well.",
        "calls": [],
        "finish": "stop",
    }
    for off in (
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"extra_body": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
    ):
        assert ask("Well </think> yes.", **off)["content"] == "Well </think> yes."
        assert scripted.prompt.endswith("</think>\n\n")
    hidden = ask("<think>a</think>b", extra_body={"include_reasoning": False})
    assert (hidden["content"], hidden["reasoning_content"]) == ("b", "")
    assert (
        joined(scripted.ask("<think>a</think>b", stream=True, extra_body={"include_reasoning": False}))[
            "reasoning_content"
        ]
        == ""
    )


def test_calls_and_results_go_back_into_the_prompt(scripted: Scripted) -> None:
    first = scripted.ask(f"<think>hm</think>{CALL}", tools=[WEATHER]).choices[0].message
    messages: Any = [
        *QUESTION,
        first,
        {
            "role": "tool",
            "tool_call_id": first.tool_calls[0].id,
            "content": [{"type": "text", "text": "Rain."}],
        },
    ]
    scripted.ask("It rains.", messages=messages, tools=[WEATHER])
    # Templates read the arguments as an object, though clients send them as text.
    assert "[get_weather Paris 🗼]" in scripted.prompt
    assert "hm</think>" in scripted.prompt
    assert "tool\nRain." in scripted.prompt


def test_choices_are_told_to_the_engine_as_grammars(scripted: Scripted) -> None:
    def grammar(**fields: Any) -> Any:
        scripted.ask("x", tools=[WEATHER, NOW], **fields)
        return scripted.requests[-1].grammar

    assert grammar() is None
    assert grammar(tool_choice="auto") is None
    assert grammar(tool_choice="none") is None
    named: Any = {"type": "function", "function": {"name": "now"}}
    assert "get_weather" in grammar(tool_choice="required")
    assert "get_weather" not in grammar(tool_choice=named)
    assert "think" in grammar(tool_choice=named), "thoughts may come first"
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    scripted.ask("x", tools=[strict])
    assert "trigger" in scripted.requests[-1].grammar


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools[0].type", "function"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "must provide"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", "at least 1"),
    ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice", "'sometimes'"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "'x'"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort", "'enormous'"),
    ({"thinking_token_budget": 0}, "thinking_token_budget", "not 0"),
    (
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
            ],
            "tool_choice": "required",
        },
        "tools[0].function.parameters",
        '"not"',
    ),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG)
def test_what_is_wrong_is_named(scripted: Scripted, fields: dict[str, Any], param: str, words: str) -> None:
    response = scripted.server.chat(**fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


# --- the demo model, which knows nothing of tools, and is held to them by grammars -----------------------


@pytest.fixture(scope="module")
def server(demo_server: RealServer) -> RealServer:
    return demo_server


def ask(server: RealServer, **fields: Any) -> Any:
    client: openai.OpenAI = server.client()
    return client.chat.completions.create(
        **{"model": server.model, "messages": QUESTION, "temperature": 0, "max_tokens": 150, **fields}
    )


def check_calls(found: dict[str, Any]) -> None:
    assert found["finish"] == "tool_calls"
    assert found["content"] == ""
    for name, arguments in found["calls"]:
        assert name in ("get_weather", "now")
        if name == "get_weather":
            jsonschema.validate(json.loads(arguments), WEATHER["function"]["parameters"])


def test_required_calls_keep_to_their_schema(server: RealServer) -> None:
    for seed in range(4):
        fields: Any = {
            "tools": [WEATHER, NOW],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "temperature": 1.0,
            "seed": seed,
        }
        found = whole(ask(server, **fields))
        check_calls(found)
        assert len(found["calls"]) == 1
        assert joined(ask(server, stream=True, **fields)) == found


def test_a_named_function_is_called(server: RealServer) -> None:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    found = whole(ask(server, tools=[NOW, WEATHER], tool_choice=choice))
    check_calls(found)
    assert [name for name, _ in found["calls"]] == ["get_weather"]


def test_the_clients_own_stream_of_calls(server: RealServer) -> None:
    with server.client().chat.completions.stream(
        model=server.model,
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=120,
    ) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert kinds.count("tool_calls.function.arguments.delta") > 2
    assert message.tool_calls
    jsonschema.validate(
        json.loads(message.tool_calls[0].function.arguments), WEATHER["function"]["parameters"]
    )


def test_a_conversation_with_calls(server: RealServer) -> None:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    first = ask(server, tools=[WEATHER], tool_choice=choice).choices[0].message
    messages: Any = [
        *QUESTION,
        first,
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "Sunny, 21 °C."},
    ]
    answer = ask(server, messages=messages, tools=[WEATHER])
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert answer.usage.prompt_tokens > 100


def test_the_client_reads_strict_tools(server: RealServer) -> None:
    import pydantic

    class Weather(pydantic.BaseModel):
        """The weather in a city."""

        city: str = pydantic.Field(max_length=20)
        days: int = pydantic.Field(ge=1, le=7)

    answer = server.client().chat.completions.parse(
        model=server.model,
        messages=QUESTION,
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=120,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, Weather)
