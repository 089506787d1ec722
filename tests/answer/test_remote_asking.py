"""What each kind of upstream is asked, and what is refused because it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from tokentrail.answer import (
    AnswerRequest,
    ChatOptions,
    ChatPrompt,
    InfillPrompt,
    LineEnds,
    TextPrompt,
    TokensPrompt,
)
from tokentrail.answer.remote import KINDS, RemoteTarget
from tokentrail.answer.remote.asking import Asked, Asking
from tokentrail.answer.remote.kinds import BY_NAME
from tokentrail.protocol import InvalidRequest, SamplingParams, StructuredOutputsParams

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
LEFT_OPEN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def asked(kind: str, *, url: str = "http://h", context: int | None = None, **fields: Any) -> Asked:
    sampling = fields.pop("sampling", {})
    asking = Asking(RemoteTarget(name="ours", url=url), BY_NAME[kind], context)
    fields = {"prompts": [ChatPrompt(messages=MESSAGES)], **fields}
    request = AnswerRequest(
        id="1",
        model="ours",
        endpoint="/",
        sampling=SamplingParams(**sampling),
        unset=[name for name in LEFT_OPEN if name not in sampling],
        **fields,
    )
    return asking.answer(request, None)


def body(kind: str, **fields: Any) -> dict[str, Any]:
    """But for what each request has."""
    usual = ("model", "messages", "prompt", "stream", "stream_options")
    return {name: value for name, value in asked(kind, **fields).body.items() if name not in usual}


# Parameters, and what becomes of them: by default as they are.
_SEVERAL = {
    "top_k": ({"top_k": 5}, {"vllm", "llama.cpp", "tokentrail"}),
    "min_p": ({"min_p": 0.5}, {"vllm", "llama.cpp", "tokentrail"}),
    "typical_p": ({"typical_p": 0.5}, {"llama.cpp", "tokentrail"}),
    "repetition_penalty": ({"repetition_penalty": 1.5}, {"vllm", "llama.cpp", "tokentrail"}),
    "min_tokens": ({"min_tokens": 3}, {"vllm", "tokentrail"}),
    "ignore_eos": ({"ignore_eos": True}, {"vllm", "llama.cpp", "tokentrail"}),
    "stop_token_ids": ({"stop_token_ids": (7,)}, {"vllm", "tokentrail"}),
    "allowed_token_ids": ({"allowed_token_ids": (7,)}, {"vllm", "tokentrail"}),
    "bad_words": ({"bad_words": ("x",)}, {"vllm", "tokentrail"}),
    "include_stop_str_in_output": ({"include_stop_str_in_output": True}, {"vllm", "tokentrail"}),
    "skip_special_tokens": ({"skip_special_tokens": False}, {"vllm", "tokentrail"}),
    "logit_bias": ({"logit_bias": {7: 1.0}}, {"openai", "vllm", "llama.cpp", "tokentrail"}),
    "n": ({"n": 2}, {"openai", "vllm", "llama.cpp", "tokentrail"}),
    "prompt_logprobs": ({"prompt_logprobs": 1}, {"vllm", "tokentrail"}),
    "frequency_penalty": ({"frequency_penalty": 0.5}, set(KINDS)),
    "presence_penalty": ({"presence_penalty": 0.5}, set(KINDS)),
    "temperature": ({"temperature": 0.0}, set(KINDS)),
    "top_p": ({"top_p": 0.5}, set(KINDS)),
    "max_tokens": ({"max_tokens": 5}, set(KINDS)),
    "stop": ({"stop": ("END",)}, set(KINDS)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", _SEVERAL)
def test_a_parameter_is_sent_or_refused_never_dropped(name: str, kind: str) -> None:
    sampling, knowing = _SEVERAL[name]
    if kind not in knowing:
        with pytest.raises(InvalidRequest) as raised:
            body(kind, sampling=sampling)
        assert raised.value.param == name
        assert name in raised.value.message
        assert "ours" in raised.value.message
        return
    found = body(kind, sampling=sampling)
    if name == "repetition_penalty" and kind == "llama.cpp":
        assert found == {"repeat_penalty": 1.5, "repeat_last_n": -1}
    elif name == "logit_bias":
        assert found == {"logit_bias": {"7": 1.0}}
    else:
        assert found == sampling


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_gave_is_not_sent(kind: str) -> None:
    assert body(kind) == {}
    # What changes nothing is no reason to refuse.
    neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    found = body(kind, sampling=neutral)
    assert set(found) <= {"top_k", "min_p", "repetition_penalty", "repeat_penalty", "repeat_last_n"}
    if kind == "llama.cpp":
        assert found["top_k"] == 0  # its own is 40


FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": {"type": "object"}},
    "json_object": {"json_object": True},
    "regex": {"regex": "a+"},
    "choice": {"choice": ("a", "b")},
    "grammar": {"grammar": "root ::= x"},
    "structural_tag": {"structural_tag": {"type": "x"}},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_answers(form: str, kind: str) -> None:
    wanted = StructuredOutputsParams(**FORMS[form], field="response_format")
    [(name, value)] = FORMS[form].items()
    if form not in BY_NAME[kind].forms:
        with pytest.raises(InvalidRequest) as raised:
            body(kind, sampling={"structured_outputs": wanted})
        assert raised.value.param == "response_format"
        return
    found = body(kind, sampling={"structured_outputs": wanted})
    if kind == "tokentrail" or (kind == "vllm" and form not in ("json", "json_object")):
        assert found == {"structured_outputs": {name: value}}
    elif form == "grammar":
        assert found == {"grammar": "root ::= x"}
    elif kind == "tgi":
        told = (
            {"type": "regex", "value": "a+"}
            if form == "regex"
            else {"type": "json_object", "value": {"type": "object"}}
        )
        assert found == {"response_format": told}
    elif form == "json_object":
        assert found == {"response_format": {"type": "json_object"}}
    else:
        schema = found["response_format"]["json_schema"]
        assert schema == {"name": "answer", "schema": {"type": "object"}, "strict": True}


def test_a_schema_may_be_a_text_or_anything() -> None:
    for given, sent in (('{"type": "null"}', {"type": "null"}), (True, {})):
        found = body("openai", sampling={"structured_outputs": StructuredOutputsParams(json=given)})
        assert found["response_format"]["json_schema"]["schema"] == sent
    with pytest.raises(InvalidRequest):
        body("openai", sampling={"structured_outputs": StructuredOutputsParams(json="{")})


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities(kind: str) -> None:
    assert body(kind, sampling={"logprobs": 3}) == {"logprobs": True, "top_logprobs": 3}
    assert body(kind, sampling={"logprobs": 0}) == {"logprobs": True}
    found = body(kind, prompts=[TextPrompt("x")], sampling={"logprobs": 3, "max_tokens": 1})
    assert found == {"logprobs": 3, "max_tokens": 1}


def test_tools() -> None:
    def with_tools(kind: str = "openai", tools: Any = (TOOL,), **options: Any) -> dict[str, Any]:
        prompt = ChatPrompt(messages=MESSAGES, tools=list(tools))
        return body(kind, prompts=[prompt], chat=ChatOptions(tools=[TOOL], **options))

    assert with_tools() == {"tools": [TOOL]}
    assert with_tools(tool_choice="required") == {"tools": [TOOL], "tool_choice": "required"}
    named = {"type": "function", "function": {"name": "look"}}
    assert with_tools(tool_choice="look") == {"tools": [TOOL], "tool_choice": named}
    assert with_tools(tool_choice="none", tools=()) == {}
    assert with_tools(parallel_tool_calls=False)["parallel_tool_calls"] is False
    with pytest.raises(InvalidRequest) as raised:
        with_tools("tgi", parallel_tool_calls=False)
    assert raised.value.param == "parallel_tool_calls"
    with pytest.raises(InvalidRequest) as raised:
        with_tools(thinking_token_budget=5)
    assert raised.value.param == "thinking_token_budget"
    assert with_tools("vllm", thinking_token_budget=5)["thinking_token_budget"] == 5
    assert "thinking_token_budget" not in with_tools(thinking_token_budget=5, thoughts_optional=True)


def test_calls_in_messages_are_written_as_openai_has_them() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "ü"}}}
    messages = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]
    sent = asked("openai", prompts=[ChatPrompt(messages=messages)]).body["messages"][1]["tool_calls"]
    assert sent == [{**call, "id": "call00001_0", "function": {"name": "look", "arguments": '{"at": "ü"}'}}]
    assert "id" not in call


@pytest.mark.parametrize(
    ("options", "name", "sent"),
    [
        ({"add_generation_prompt": False}, "add_generation_prompt", {"add_generation_prompt": False}),
        ({"continue_final_message": True}, "continue_final_message", {"continue_final_message": True}),
        ({"add_special_tokens": True}, "add_special_tokens", {"add_special_tokens": True}),
        ({"template": "x"}, "chat_template", {"chat_template": "x"}),
        ({"template_kwargs": {"y": 1}}, "chat_template_kwargs", {"chat_template_kwargs": {"y": 1}}),
    ],
)
def test_options_of_conversations(options: dict[str, Any], name: str, sent: dict[str, Any]) -> None:
    prompt = ChatPrompt(messages=MESSAGES, **options)
    assert body("vllm", prompts=[prompt]) == sent
    with pytest.raises(InvalidRequest) as raised:
        body("openai", prompts=[prompt])
    assert raised.value.param == name


def test_effort_in_the_words_of_each() -> None:
    def effort(kind: str, **variables: Any) -> dict[str, Any]:
        return body(kind, prompts=[ChatPrompt(messages=MESSAGES, template_kwargs=variables)])

    assert effort("openai", reasoning_effort="low") == {"reasoning_effort": "low"}
    assert effort("openai", enable_thinking=False, thinking=False) == {"reasoning_effort": "none"}
    assert effort("openai", enable_thinking=True, thinking=True) == {}
    assert effort("llama.cpp", enable_thinking=False) == {"chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(InvalidRequest):
        effort("tgi", reasoning_effort="low")


def test_prompts_that_are_no_conversation() -> None:
    def prompt(kind: str, *prompts: Any) -> Any:
        return asked(kind, prompts=list(prompts), sampling={"max_tokens": 1}).body["prompt"]

    assert prompt("tgi", TextPrompt("x")) == "x"
    assert prompt("openai", TextPrompt("x"), TextPrompt("y")) == ["x", "y"]
    assert prompt("openai", TokensPrompt([1, 2])) == [1, 2]
    assert prompt("llama.cpp", TokensPrompt([1]), TokensPrompt([2])) == [[1], [2]]
    infill = asked("openai", prompts=[InfillPrompt("a", "b")], sampling={"max_tokens": 1})
    assert (infill.body["prompt"], infill.body["suffix"]) == ("a", "b")
    bare = TextPrompt("x", add_special_tokens=False)
    assert asked("vllm", prompts=[bare], sampling={"max_tokens": 1}).body["add_special_tokens"] is False
    refused: list[tuple[str, list[Any], str]] = [
        ("tgi", [TokensPrompt([1])], "prompt"),
        ("tgi", [TextPrompt("x"), TextPrompt("y")], "prompt"),
        ("vllm", [InfillPrompt("a", "b")], "suffix"),
        ("openai", [bare], "add_special_tokens"),
        ("vllm", [bare, TextPrompt("x")], "prompt"),
        ("openai", [TextPrompt("x"), TokensPrompt([1])], "prompt"),
        ("openai", [ChatPrompt(messages=MESSAGES), ChatPrompt(messages=MESSAGES)], "messages"),
        ("openai", [TextPrompt("x"), ChatPrompt(messages=MESSAGES)], "messages"),
    ]
    for kind, prompts, name in refused:
        with pytest.raises(InvalidRequest) as raised:
            prompt(kind, *prompts)
        assert raised.value.param == name


def test_how_long_an_answer_may_be() -> None:
    text = [TextPrompt("x")]
    assert body("openai", default_max_tokens=9) == {"max_tokens": 9}
    assert body("vllm", default_max_tokens=9, context=9) == {}  # all that there is room for
    assert body("openai", url="https://api.openai.com/v1", sampling={"max_tokens": 9}) == {
        "max_completion_tokens": 9
    }
    assert body("openai", prompts=text, default_max_tokens=16) == {"max_tokens": 16}
    # Without a limit: to the end of the context.
    assert body("llama.cpp", prompts=text) == {"max_tokens": -1}
    assert body("vllm", prompts=text) == {"max_tokens": None}
    assert asked("tokentrail", prompts=text, context=100).fill
    with pytest.raises(InvalidRequest) as raised:
        body("openai", prompts=text)
    assert raised.value.param == "max_tokens"


def test_what_concerns_only_when_an_answer_comes() -> None:
    fields: dict[str, Any] = {"priority": -1, "salt": "tenant:x"}
    assert body("openai", **fields) == {}
    found = body("tokentrail", **fields)
    assert found["priority"] == -1
    assert "tenant" not in found["cache_salt"]
    assert found["cache_salt"] == body("vllm", **fields)["cache_salt"]
    assert found["cache_salt"] != body("vllm", salt="tenant:y")["cache_salt"]


def test_lines_that_end_an_answer_are_not_asked_for() -> None:
    fields: dict[str, Any] = {"prompts": [TextPrompt("x")], "sampling": {"max_tokens": 1}}
    for kind in ("llama.cpp", "tokentrail"):
        with pytest.raises(InvalidRequest) as raised:
            body(kind, **fields, lines=LineEnds(indent=4))
        assert raised.value.param == "lines"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"token_ids": True}, "return_token_ids"),
        ({"tokens_by_id": True}, "return_tokens_as_token_ids"),
    ],
)
def test_other_wishes(fields: dict[str, Any], name: str) -> None:
    text: dict[str, Any] = {"prompts": [TextPrompt("x")], "sampling": {"max_tokens": 1}}
    assert body("vllm", **text, **fields) == {"max_tokens": 1, name: next(iter(fields.values()))}
    with pytest.raises(InvalidRequest) as raised:
        body("llama.cpp", **text, **fields)
    assert raised.value.param == name
