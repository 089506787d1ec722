"""Whatever JSON a client sends, it is understood or refused by name: never an internal error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scripted_server import ScriptedServer

from tokentrail.answer import AnswerRequest, ChatPrompt
from tokentrail.answer.admission import Desk
from tokentrail.answer.parts import TextParts
from tokentrail.answer.prompts import prepare
from tokentrail.journey import JourneyStore
from tokentrail.observability import Metrics
from tokentrail.protocol import InvalidRequest, SamplingDefaults, SamplingParams
from tokentrail.server.openai.chat import ChatDialect, prompt_of
from tokentrail.server.openai.completions import CompletionDialect
from tokentrail.server.openai.requests import ChatCompletionRequest, CompletionRequest
from tokentrail.server.schemas import parse
from tokentrail.text import ChatTemplate

NAMES = [
    *ChatCompletionRequest.model_fields,
    *CompletionRequest.model_fields,
    *ChatCompletionRequest.UNSUPPORTED,
    *CompletionRequest.UNSUPPORTED,
    *ChatCompletionRequest.HARMLESS,
    "something",
]
numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, 1, -1, 2, 0.5, 2**31, 2**63, -(2**63), 1e308])
)
texts = st.one_of(st.text(max_size=20), st.sampled_from(["", "user", "text", "auto", "none", "<|im_end|>"]))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "include_usage", "5"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
bodies = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("chat", [True, False])
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies)
def test_any_body_is_understood_or_refused(text_parts: TextParts, chat: bool, body: dict[str, Any]) -> None:
    from scripted_engine import engine_info

    body = {"model": "m", **({"messages": MESSAGES} if chat else {"prompt": "Hi"}), **body}
    raw = json.dumps(body).encode()
    desk = Desk(text_parts, JourneyStore(), Metrics())
    try:
        if chat:
            dialect: ChatDialect | CompletionDialect = ChatDialect(parse(ChatCompletionRequest, raw))
        else:
            dialect = CompletionDialect(parse(CompletionRequest, raw))
        asked = dialect.question()
        request = AnswerRequest(
            id="x",
            prompts=asked.prompts,
            sampling=asked.sampling,
            model="m",
            endpoint="test",
            echo=asked.echo,
        )
        desk.check(request, engine_info())
        admission = desk.admit(request, desk.prepare(request, engine_info()), engine_info())
    except InvalidRequest as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.message
        assert "\n" not in refused.message
        assert len(refused.message) < 1000
        return
    for sequence in admission.sequences:
        made = sequence.request.sampling
        assert isinstance(made, SamplingParams)
        made.validate(vocab_size=49152)
        assert made.seed is not None
        assert made.max_tokens is not None
        assert len(sequence.request.prompt) + made.max_tokens <= 512


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"messages": [{"role": "user"}]}, "messages[0].content", "You must provide messages[0].content."),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "You must provide messages[0].role."),
        ({"messages": [*MESSAGES, {"role": "alien", "content": "x"}]}, "messages[1].role",
         "messages[1].role must be one of system, developer, user, assistant, tool, function, not 'alien'."),
        ({"messages": "x"}, "messages", "Invalid value for 'messages': it should be a list."),
        ({"stop": 5}, "stop", "Invalid value for 'stop': it should be a string or a list."),
        ({"seed": "x"}, "seed", "Invalid value for 'seed': it should be an integer."),
        ({"stream": 1}, "stream", "Invalid value for 'stream': it should be true or false."),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)  # fmt: skip
def test_mistakes_are_named_in_plain_words(fields: dict[str, Any], param: str, said: str) -> None:
    body = {"model": "m", "messages": MESSAGES, **fields}
    with pytest.raises(InvalidRequest) as caught:
        ChatDialect(parse(ChatCompletionRequest, json.dumps(body).encode())).question()
    assert (caught.value.message, caught.value.param) == (said, param)


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=60))
def test_any_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(ChatCompletionRequest, raw)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1.5] * 1000},
        {"prompt": [1] * 500 + ["a"] * 500},
        {"prompt": [[""]] * 1000},
        {"prompt": [["a"] * 1000]},
        {"messages": [1] * 1000},
        {"messages": [{}] * 1000},
        {"messages": [{"role": "user", "content": [{}] * 1000}]},
        {"stop": [1] * 1000},
        {"stop_token_ids": ["a"] * 1000},
        {"logit_bias": {str(id): "much" for id in range(1000)}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_only_the_first_of_many_mistakes_is_collected(fields: dict[str, Any]) -> None:
    model = ChatCompletionRequest if "messages" in fields else CompletionRequest
    body = {"model": "m", "prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}], **fields}
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(json.dumps(body))
    assert caught.value.error_count() <= 4  # one for each type that a field may have


def test_recommendations_fill_what_a_request_does_not_say(text_parts: TextParts) -> None:
    """As vLLM does with a model's generation_config.json: null, too, is not said; what is said wins."""
    recommended = SamplingDefaults(
        temperature=0.5, top_p=0.8, top_k=20, min_p=0.1, repetition_penalty=1.05, max_tokens=3
    )
    server = ScriptedServer(replace(text_parts, defaults=recommended), {}, {}, True)
    try:

        def asked() -> SamplingParams:
            return server.engine.requests[-1].sampling

        assert server.chat().status_code == 200
        assert asked().replace(seed=None) == SamplingParams(
            temperature=0.5, top_p=0.8, top_k=20, min_p=0.1, repetition_penalty=1.05, max_tokens=3
        )
        said = {"temperature": 0, "top_p": 1.0, "top_k": 0, "min_p": 0, "repetition_penalty": 1.0}
        assert server.chat(**said, max_completion_tokens=7).status_code == 200
        assert asked().replace(seed=None) == SamplingParams(temperature=0.0, max_tokens=7)
        assert server.chat(temperature=None, top_k=4).status_code == 200
        assert (asked().temperature, asked().top_k) == (0.5, 4)
        assert server.complete().status_code == 200
        assert (asked().temperature, asked().max_tokens) == (0.5, 100)
        # A completion without max_tokens has 16, as OpenAI says.
        assert server.complete(max_tokens=None).status_code == 200
        assert asked().max_tokens == 16
    finally:
        server.close()


def test_a_message_to_go_on_with(text_parts: TextParts) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So it "}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    prompt = prompt_of(parse(ChatCompletionRequest, json.dumps(body).encode()))
    (ids,) = prepare([prompt], text_parts.tokenizer, text_parts.template, 512).token_ids
    shown = text_parts.tokenizer.decode(ids, skip_special_tokens=False)
    assert shown.endswith("<|im_start|>assistant\nSo it ")
    body["add_generation_prompt"] = True
    prompt = prompt_of(parse(ChatCompletionRequest, json.dumps(body).encode()))
    with pytest.raises(InvalidRequest, match="exclude each other") as caught:
        prepare([prompt], text_parts.tokenizer, text_parts.template, 512)
    assert caught.value.param == "continue_final_message"


def test_tools_come_to_the_template(text_parts: TextParts) -> None:
    template = ChatTemplate("plain", named={"tool_use": "{{ tools[0].function.name }}"})
    tools = [{"type": "function", "function": {"name": "weather"}}]
    prompt = ChatPrompt(messages=[{"role": "user", "content": "Hi"}], tools=tools)
    assert prepare([prompt], text_parts.tokenizer, template, 512).texts == ["weather"]
