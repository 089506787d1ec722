"""The unmodified `openai` client, synchronous and asynchronous, against a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

MESSAGES: Any = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "What is the capital of France?"},
]
# Every parameter of the README's table, at values that are allowed.
EVERYTHING: dict[str, Any] = {
    "max_tokens": 150,
    "temperature": 0.7,
    "top_p": 0.9,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "stop": ["nowhere", "never"],
    "n": 2,
    "seed": 11,
    "logit_bias": {"17": -100, "18": 1.5},
    "logprobs": True,
    "top_logprobs": 3,
    "user": "somebody",
    "extra_body": {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": False,
        "stop_token_ids": [9],
        "include_stop_str_in_output": False,
        "skip_special_tokens": True,
        "add_generation_prompt": True,
        "priority": -1,
        "cache_salt": "mine",
        "chat_template_kwargs": {"anything": 1},
    },
}


def test_a_chat_answer(server: ScriptedServer) -> None:
    answer = server.client().chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=150, temperature=0.7
    )
    (choice,) = answer.choices
    assert choice.message.content == TEXT
    assert (choice.message.role, choice.message.refusal, choice.finish_reason) == ("assistant", None, "stop")
    assert choice.logprobs is None
    assert answer.model == MODEL
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint == "fp_scripted"
    assert answer._request_id == answer.id
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(server.tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens // 2


def test_a_streamed_chat_answer(server: ScriptedServer) -> None:
    with server.client().chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    first, *middle, finish, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert all(chunk.choices[0].delta.role is None for chunk in middle)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in middle) == TEXT
    assert all(chunk.choices[0].finish_reason is None for chunk in middle)
    assert (finish.choices[0].finish_reason, finish.choices[0].delta.content) == ("stop", None)
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(server.tokens)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks} == {
        (first.id, first.created, MODEL, "chat.completion.chunk")
    }


def test_without_include_usage_there_is_none(server: ScriptedServer) -> None:
    with server.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream:
        chunks = list(stream)
    assert all(chunk.choices and "usage" not in chunk.model_fields_set for chunk in chunks)


def test_every_parameter_whole_and_streamed_alike(server: ScriptedServer) -> None:
    client = server.client()
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, **EVERYTHING)
    sent = server.engine.requests[-1]
    assert sent.sampling.top_k == 5
    assert sent.sampling.logit_bias == {17: -100.0, 18: 1.5}
    assert (sent.priority, sent.salt) == (-1, "mine")
    streamed: dict[int, dict[str, Any]] = {0: {}, 1: {}}
    with client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **EVERYTHING) as stream:
        for chunk in stream:
            assert chunk.seed == 11  # type: ignore[attr-defined]
            for choice in chunk.choices:
                found = streamed[choice.index]
                found["text"] = found.get("text", "") + (choice.delta.content or "")
                if choice.logprobs is not None:
                    found.setdefault("logprobs", []).extend(choice.logprobs.content or [])
                found["finish"] = choice.finish_reason or found.get("finish")
    assert len(whole.choices) == 2
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert streamed[choice.index] == {
            "text": choice.message.content,
            "logprobs": choice.logprobs.content,
            "finish": choice.finish_reason,
        }
        entries = choice.logprobs.content or []
        assert b"".join(bytes(entry.bytes or ()) for entry in entries[:-1]).decode() == TEXT
        assert all(len(entry.top_logprobs) == 3 for entry in entries)


@pytest.mark.parametrize("stop", [None, "lazy", ["🦊", "lazy"]])
def test_completions_whole_and_streamed_alike(server: ScriptedServer, stop: Any) -> None:
    client = server.client()
    options: dict[str, Any] = {"model": MODEL, "prompt": ["One", "Two"], "n": 2, "stop": stop, "seed": 5}
    whole = client.completions.create(**options, max_tokens=100, logprobs=2, echo=True)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    logprobs: dict[int, dict[str, list[Any]]] = {}
    with client.completions.create(**options, max_tokens=100, logprobs=2, echo=True, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
                if choice.logprobs:
                    for name, values in choice.logprobs.model_dump().items():
                        logprobs.setdefault(choice.index, {}).setdefault(name, []).extend(values)
                if choice.finish_reason:
                    reasons[choice.index] = choice.finish_reason
    for choice in whole.choices:
        assert choice.text == texts[choice.index]
        assert choice.finish_reason == reasons[choice.index] == "stop"
        assert choice.logprobs is not None
        assert choice.logprobs.model_dump() == logprobs[choice.index]
    expected = TEXT if stop is None else TEXT[: TEXT.find("🦊" if "🦊" in stop else "lazy")]
    assert texts == {0: "One" + expected, 1: "One" + expected, 2: "Two" + expected, 3: "Two" + expected}


def test_completions_of_token_ids(server: ScriptedServer) -> None:
    client = server.client()
    client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=3)
    assert server.engine.requests[-1].prompt == [5, 6, 7]
    answer = client.completions.create(model=MODEL, prompt=[[5, 6], [7]], max_tokens=3)
    assert [request.prompt for request in server.engine.requests[-2:]] == [[5, 6], [7]]
    assert len(answer.choices) == 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 6)


def test_completions_default_to_16_tokens(server: ScriptedServer) -> None:
    answer = server.client().completions.create(model=MODEL, prompt="x")
    assert answer.choices[0].finish_reason == "length"
    assert server.engine.requests[-1].sampling.max_tokens == 16
    # As far as there is room.
    server.client().completions.create(model=MODEL, prompt=[5] * 505)
    assert server.engine.requests[-1].sampling.max_tokens == 7


def test_token_ids_come_back_when_asked(server: ScriptedServer) -> None:
    client = server.client()
    extra = {"return_token_ids": True}
    answer: Any = client.completions.create(
        model=MODEL, prompt=[[5, 6], [7]], max_tokens=50, extra_body=extra
    )
    assert [choice.token_ids for choice in answer.choices] == [server.tokens] * 2
    assert [choice.prompt_token_ids for choice in answer.choices] == [[5, 6], [7]]
    chat: Any = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra)
    assert chat.choices[0].token_ids == server.tokens
    assert chat.prompt_token_ids == server.engine.requests[-1].prompt
    ids: list[int] = []
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_body=extra, stream=True
    ) as stream:
        for chunk in stream:
            ids += getattr(chunk.choices[0], "token_ids", [])
    assert ids == server.tokens


def test_a_drawn_seed_comes_back_whole_and_streamed(server: ScriptedServer) -> None:
    client = server.client()
    answer: Any = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.seed == server.engine.requests[-1].sampling.seed
    with client.completions.create(model=MODEL, prompt="x", stream=True) as stream:
        seeds = {chunk.seed for chunk in stream}  # type: ignore[attr-defined]
    assert seeds == {server.engine.requests[-1].sampling.seed}


def test_text_parts_are_joined_and_developers_are_the_system(server: ScriptedServer, text_parts: Any) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
    ]
    server.client().chat.completions.create(model=MODEL, messages=messages)
    prompt = text_parts.tokenizer.decode(server.engine.requests[-1].prompt, skip_special_tokens=False)
    assert "system\nBe brief." in prompt
    assert "user\nOne\nTwo<|im_end|>" in prompt


def test_max_completion_tokens_is_max_tokens(server: ScriptedServer) -> None:
    answer = server.client().chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_models(make_server: MakeServer) -> None:
    server = make_server(served_model_names=("Qwen1.5-7B-Chat", "org/other"))
    client = server.client()
    assert [model.id for model in client.models.list()] == ["Qwen1.5-7B-Chat", "org/other"]
    assert client.models.retrieve("org/other").id == "org/other"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("third")
    for name in ("Qwen1.5-7B-Chat", "org/other"):
        assert client.chat.completions.create(model=name, messages=MESSAGES).model == name
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="third", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_the_asynchronous_client(server: ScriptedServer) -> None:
    client = server.async_client()

    async def whole() -> str | None:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        return answer.choices[0].message.content

    async def streamed() -> str:
        text = ""
        async with await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True
        ) as stream:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        return text

    assert await asyncio.gather(*[f() for f in (whole, streamed) for _ in range(20)]) == [TEXT] * 40
    await client.close()


def test_line_separators_in_a_text_do_not_break_the_stream(make_server: MakeServer, text_parts: Any) -> None:
    text = "one\u2028two\u2029three\u0085four\r\nfive\vsix\x1cseven\n\n\ndata: [DONE]\n\n"
    tokens = text_parts.tokenizer.encode(text)
    server = make_server(engine={"script": lambda request: tokens})
    with server.client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
    body = server.chat(stream=True).text
    # Even to a reader that takes every Unicode line end for one.
    assert all(line == "" or line.startswith("data: ") for line in body.splitlines())
