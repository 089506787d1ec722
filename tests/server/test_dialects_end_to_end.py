"""Anthropic's Messages and OpenAI's Responses before the demo model, in a process of its own."""

from __future__ import annotations

from typing import Any

import anthropic
import jsonschema
import openai
import pydantic
import pytest
from real_server import RealServer
from scripted_model import WEATHER

pytestmark = pytest.mark.timeout(300)

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = WEATHER["function"]["parameters"]


@pytest.fixture(scope="module")
def server(demo_server: RealServer) -> RealServer:
    return demo_server


def test_messages(server: RealServer) -> None:
    client = anthropic.Anthropic(api_key="none", base_url=server.url, max_retries=0)
    fields: Any = {"model": server.model, "max_tokens": 60, "messages": QUESTION}
    greedy: Any = {"extra_body": {"temperature": 0}}
    message: Any = client.messages.create(**fields, **greedy)
    assert "Paris" in message.content[0].text
    again = client.messages.create(**fields, **greedy)
    assert again.content == message.content
    # The same prompt is found again, but for its last block.
    assert again.usage.cache_read_input_tokens
    count = client.messages.count_tokens(model=server.model, messages=QUESTION).input_tokens
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == count
    with client.messages.stream(**fields, **greedy) as stream:
        assert "".join(stream.text_stream) == message.content[0].text
    begun: Any = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    continued: Any = client.messages.create(**{**fields, "messages": begun, "max_tokens": 3}, **greedy)
    assert "Paris" in continued.content[0].text
    tool: Any = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
    with client.messages.stream(
        **{**fields, "max_tokens": 150},
        **greedy,
        tools=[tool],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ) as calls:
        called: Any = calls.get_final_message()
    assert called.stop_reason == "tool_use"
    (use,) = called.content
    jsonschema.validate(use.input, SCHEMA)
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny."}
    told: Any = [
        *QUESTION,
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    assert client.messages.create(**{**fields, "messages": told}, tools=[tool]).content


def test_responses(server: RealServer) -> None:
    client: openai.OpenAI = server.client()
    fields: Any = {"model": server.model, "temperature": 0, "max_output_tokens": 150}
    first = client.responses.create(input="What is the capital of France?", **fields)
    assert "Paris" in first.output_text
    second = client.responses.create(input="And of Spain?", previous_response_id=first.id, **fields)
    assert first.usage is not None
    assert second.usage is not None
    # The conversation so far, which was computed then.
    assert second.usage.input_tokens > first.usage.total_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert client.responses.retrieve(second.id).output_text == second.output_text

    class City(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        people: int = pydantic.Field(ge=0, le=99_999_999)

    parsed = client.responses.parse(input="Paris?", text_format=City, **fields)
    assert isinstance(parsed.output_parsed, City)
    tool: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
    with client.responses.stream(
        input="The weather?",
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        **fields,
    ) as stream:
        (call,) = stream.until_done().get_final_response().output
    assert call.type == "function_call"
    jsonschema.validate(call.parsed_arguments, SCHEMA)
