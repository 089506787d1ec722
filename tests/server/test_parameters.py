"""Parameters beyond the usual ones, through the unmodified `openai` client and over a real socket."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from real_server import RealServer
from scripted_engine import logprob
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.answer.parsing import Formats
from tokentrail.answer.parts import TextParts
from tokentrail.protocol import GenerateRequest
from tokentrail.text import ChatTemplate, Infill

pytestmark = pytest.mark.timeout(300)

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def test_the_best_of_several_by_their_mean_log_probability(make_server: MakeServer) -> None:
    # A token's log-probability is -id / 1024. The longest has the best mean, and the worst sum.
    says = [[900, 900, 2], [30, 40, 50, 60, 30, 40, 50, 60, 30, 2], [500, 2], [10, 800, 2]]
    server = make_server(engine={"script": lambda request: says[request.choice]})
    client = server.client()

    def ask(**fields: Any) -> Any:
        return client.completions.create(
            **{"model": MODEL, "prompt": "x", "max_tokens": 20, "seed": 1, **fields}
        )

    every = [choice.text for choice in ask(n=4).choices]
    answer = ask(best_of=4, n=2)
    assert [choice.text for choice in answer.choices] == [every[1], every[2]]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.logprobs is None for choice in answer.choices)
    assert answer.usage.completion_tokens == sum(map(len, says)), "all of them were generated"
    assert ask(best_of=4).choices[0].text == every[1]
    assert ask(best_of=1).choices[0].text == every[0]
    assert ask(best_of=1, stream=False, n=1).choices[0].text == every[0]
    # Of each prompt of its own, with what was asked for besides.
    several = ask(prompt=["x", "y"], best_of=4, n=2, logprobs=0, echo=True, extra_body={"prompt_logprobs": 0})
    assert [choice.text for choice in several.choices] == [
        start + every[index] for start in "xy" for index in (1, 2)
    ]
    assert several.choices[1].logprobs.token_logprobs[1:] == [logprob(token) for token in says[2]]
    first = [next(iter(choice.prompt_logprobs or [None]), "") for choice in several.choices]
    assert first == [None] * 4
    with client.completions.create(model=MODEL, prompt="x", best_of=2, n=2, stream=True) as stream:
        assert {choice.index for chunk in stream for choice in chunk.choices} == {0, 1}


def test_log_probabilities_of_prompts(server: ScriptedServer) -> None:
    body = {"prompt": [[500, 600, 601], [7, 9]], "prompt_logprobs": 2, "n": 2}
    answer = server.complete(**body).json()
    first, same, second, _ = (choice["prompt_logprobs"] for choice in answer["choices"])
    assert first == same
    # Alternatives of the scripted engine: the token itself, and the ones below it.
    assert first[0] is None
    assert first[1] == {
        "600": {"logprob": logprob(600), "rank": 1, "decoded_token": first[1]["600"]["decoded_token"]},
        "599": {"logprob": logprob(599), "rank": 2, "decoded_token": first[1]["599"]["decoded_token"]},
    }
    assert [list(place or ()) for place in second] == [[], ["9", "8"]]
    none = server.complete(prompt=[500, 600], prompt_logprobs=0).json()["choices"][0]["prompt_logprobs"]
    assert list(none[1]) == ["600"]
    assert none[1]["600"]["rank"] is None, "nothing is known of others"
    chat = server.chat(prompt_logprobs=1, n=2).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in chat["choices"][0]
    # The second choice does not compute them again.
    assert [one.sampling.prompt_logprobs for one in server.engine.requests[-2:]] == [1, None]
    echoed = server.complete(prompt="One two", prompt_logprobs=3, echo=True, logprobs=1).json()["choices"][0]
    assert len(echoed["prompt_logprobs"][1]) == 3
    assert len(echoed["logprobs"]["top_logprobs"][1]) == 1


def test_truncated_prompts(server: ScriptedServer, text_parts: TextParts) -> None:
    tokenizer = text_parts.tokenizer
    whole = tokenizer.encode("One two three four five")
    assert server.complete(prompt="One two three four five", truncate_prompt_tokens=2).status_code == 200
    assert server.engine.requests[-1].prompt == whole[-2:]
    assert server.complete(prompt=[5, 6, 7], truncate_prompt_tokens=2).json()["usage"]["prompt_tokens"] == 2
    assert server.complete(prompt=[5, 6], truncate_prompt_tokens=9).json()["usage"]["prompt_tokens"] == 2
    # As much as fits beside the answer, of a text that is longer than the context.
    long = "word " * 5000
    assert server.complete(prompt=long, truncate_prompt_tokens=-1, max_tokens=12).status_code == 200
    assert len(server.engine.requests[-1].prompt) == 500
    assert server.complete(prompt=long).status_code == 400
    chat = server.chat(messages=[{"role": "user", "content": long}], truncate_prompt_tokens=30)
    assert chat.json()["usage"]["prompt_tokens"] == 30
    shown = tokenizer.decode(server.engine.requests[-1].prompt, skip_special_tokens=False)
    assert shown.endswith("<|im_start|>assistant\n")
    echoed = server.complete(
        prompt="One two three four five", truncate_prompt_tokens=2, echo=True, logprobs=0
    )
    choice = echoed.json()["choices"][0]
    assert choice["text"].startswith(" four five")
    assert choice["logprobs"]["tokens"][:2] == [" four", " five"]


def test_special_tokens_around_prompts(server: ScriptedServer, text_parts: TextParts) -> None:
    plain = text_parts.tokenizer.encode("Hi", add_special_tokens=False)
    server.complete(add_special_tokens=False)
    assert server.engine.requests[-1].prompt == plain
    server.complete()
    assert server.engine.requests[-1].prompt == text_parts.tokenizer.encode("Hi")


def test_bad_words_become_runs_of_tokens(server: ScriptedServer, text_parts: TextParts) -> None:
    encode = text_parts.tokenizer.encode
    assert server.complete(bad_words=["lazy", " dog of war"]).status_code == 200
    runs = server.engine.requests[-1].sampling.bad_token_ids
    texts = ("lazy", " lazy", " dog of war")
    assert set(runs) == {tuple(encode(text, add_special_tokens=False)) for text in texts}
    server.complete(allowed_token_ids=[7, 5, 7])
    assert server.engine.requests[-1].sampling.allowed_token_ids == (7, 5)


def test_what_is_only_noted_comes_back_as_openai_sends_it(server: ScriptedServer) -> None:
    client = server.client()
    asked: Any = {
        "service_tier": "flex",
        "metadata": {"run": "7"},
        "store": True,
        "user": "somebody",
        "safety_identifier": "x",
        "prompt_cache_key": "y",
        "verbosity": "low",
    }
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, **asked)
    assert (answer.service_tier, answer.metadata) == ("default", {"run": "7"})
    plain = server.chat().json()
    assert "service_tier" not in plain
    assert "metadata" not in plain
    with client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **asked) as stream:
        assert {chunk.service_tier for chunk in stream} == {"default"}


@pytest.mark.parametrize("chat", [True, False])
def test_usage_in_every_event(server: ScriptedServer, chat: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    ask = server.chat if chat else server.complete
    events = [
        json.loads(line[6:])
        for line in ask(stream=True, stream_options=options).text.splitlines()
        if line.startswith("data: {")
    ]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == len(server.tokens)
    assert len(set(counts)) > 5
    prompt = {event["usage"]["prompt_tokens"] for event in events}
    assert len(prompt) == 1
    # It needs the other option, as with vLLM.
    alone = ask(stream=True, stream_options={"continuous_usage_stats": True}).text
    assert '"usage"' not in alone


def test_tokens_named_by_their_ids(server: ScriptedServer) -> None:
    chat = server.chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True).json()
    entries = chat["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{token}" for token in server.tokens]
    assert entries[0]["top_logprobs"][0]["token"] == entries[0]["token"]
    text = server.complete(logprobs=1, return_tokens_as_token_ids=True).json()["choices"][0]["logprobs"]
    assert text["tokens"] == [f"token_id:{token}" for token in server.tokens]
    assert list(text["top_logprobs"][0]) == text["tokens"][:1]
    streamed = server.complete(logprobs=0, return_tokens_as_token_ids=True, stream=True).text
    assert f'"tokens":["token_id:{server.tokens[0]}"]' in streamed


def test_the_last_message_before_what_goes_on_with_it(server: ScriptedServer) -> None:
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "So it "}]
    fields: Any = {
        "messages": messages,
        "extra_body": {"echo": True, "continue_final_message": True, "add_generation_prompt": False},
    }
    client = server.client()
    whole = client.chat.completions.create(model=MODEL, **fields).choices[0].message.content
    assert whole == "So it " + TEXT
    with client.chat.completions.create(model=MODEL, stream=True, **fields) as stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole
    assert server.chat(echo=True).json()["choices"][0]["message"]["content"] == TEXT


# --- templates, documents, messages ----------------------------------------------------------------------


def test_a_template_of_the_requests_own(make_server: MakeServer, text_parts: TextParts) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    refused = make_server().chat(chat_template=template)
    assert refused.status_code == 400
    assert "--trust-request-chat-template" in refused.json()["error"]["message"]
    server = make_server(trust_request_chat_template=True)
    assert server.chat(chat_template=template).status_code == 200
    assert text_parts.tokenizer.decode(server.engine.requests[-1].prompt) == "<user>Hi"
    broken = server.chat(chat_template="{% if %}").json()["error"]
    assert broken["param"] == "chat_template"
    assert server.chat(chat_template="").status_code == 200


def test_documents_come_to_the_template(text_parts: TextParts) -> None:
    source = (
        "{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}{{ messages[0].content }}"
    )
    server = ScriptedServer(dataclasses.replace(text_parts, template=ChatTemplate(source)), {}, {}, True)
    try:
        assert server.chat(documents=[{"title": "A", "text": "b"}]).status_code == 200
        assert text_parts.tokenizer.decode(server.engine.requests[-1].prompt) == "[A: b]Hi"
        assert server.chat(documents=5).json()["error"]["param"] == "documents"
    finally:
        server.close()


def test_messages_of_assistants_without_content(server: ScriptedServer) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for message in (
        {"content": None, "tool_calls": [call]},
        {"tool_calls": [call]},
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"content": None, "refusal": "No."},
        {"content": None, "reasoning_content": "Well."},
        {"content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
    ):
        answer = server.chat(messages=[*MESSAGES, {"role": "assistant", **message}, *MESSAGES])
        assert answer.status_code == 200, answer.text
    for message in ({"content": None}, {"content": None, "tool_calls": []}):
        answer = server.chat(messages=[*MESSAGES, {"role": "assistant", **message}])
        assert answer.json()["error"]["param"] == "messages[1].content"


@pytest.mark.parametrize(
    ("kind", "word"),
    [("image_url", "an image"), ("input_audio", "audio"), ("video_url", "a video"), ("file", "a file")],
)
def test_what_a_text_model_cannot_read_is_named(server: ScriptedServer, kind: str, word: str) -> None:
    content = [{"type": "text", "text": "Look"}, {"type": kind, kind: {}}]
    found = server.chat(messages=[{"role": "user", "content": content}]).json()["error"]
    assert found["param"] == "messages[0].content[1]"
    assert found["message"].startswith(f"messages[0].content[1] is {word} (type {kind!r})")


# --- OpenAI's older way of tools ---------------------------------------------------------------------------

TEMPLATE = (
    "{% for t in tools or [] %}<tool>{{ t.function.name }}</tool>{% endfor %}<tool_call>"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments.city }}]{% endfor %}"
    "{% endfor %}"
)
FUNCTIONS: Any = [
    {"name": "now", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
]


@pytest.fixture(scope="module")
def caller(text_parts: TextParts) -> Iterator[ScriptedServer]:
    said = '<tool_call>\n{"name": "now", "arguments": {"city": "Köln"}}\n</tool_call>'
    parts = dataclasses.replace(text_parts, template=ChatTemplate(TEMPLATE), formats=Formats.of(TEMPLATE))
    tokens = [*parts.tokenizer.encode("Well.\n" + said + said), 2]
    server = ScriptedServer(parts, {}, {"script": lambda request: tokens}, True)
    yield server
    server.close()


def test_functions_are_answered_in_their_own_shape(caller: ScriptedServer, text_parts: TextParts) -> None:
    client = caller.client()
    fields: Any = {"model": MODEL, "messages": MESSAGES, "functions": FUNCTIONS}
    (choice,) = client.chat.completions.create(**fields).choices
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call is not None
    assert choice.message.function_call.name == "now"
    assert json.loads(choice.message.function_call.arguments) == {"city": "Köln"}
    assert choice.message.tool_calls is None
    assert choice.message.content == "Well."
    assert "<tool>now</tool>" in text_parts.tokenizer.decode(caller.engine.requests[-1].prompt)
    names, arguments, content, ends = [], "", "", []
    with client.chat.completions.create(stream=True, **fields) as stream:
        for chunk in stream:
            delta = chunk.choices[0].delta
            assert delta.tool_calls is None
            content += delta.content or ""
            if delta.function_call is not None:
                names += [delta.function_call.name] if delta.function_call.name else []
                arguments += delta.function_call.arguments or ""
            ends += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert (names, arguments) == (["now"], choice.message.function_call.arguments)
    assert (content, ends) == ("Well.", ["function_call"])
    silent = client.chat.completions.create(function_call="none", **fields).choices[0]
    assert silent.message.function_call is None
    named = client.chat.completions.create(function_call={"name": "now"}, **fields)
    assert named.choices[0].finish_reason == "function_call"
    assert "now" in (caller.engine.requests[-1].grammar or "")


def test_functions_in_the_history(caller: ScriptedServer, text_parts: TextParts) -> None:
    history: Any = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "now", "arguments": '{"city": "Ulm"}'},
        },
        {"role": "function", "name": "now", "content": "12:00"},
    ]
    caller.client().chat.completions.create(model=MODEL, messages=history, functions=FUNCTIONS)
    prompt = text_parts.tokenizer.decode(caller.engine.requests[-1].prompt)
    assert "[now Ulm]" in prompt
    assert "<tool>12:00" in prompt


# --- filling in the middle -----------------------------------------------------------------------------------


def test_a_suffix(text_parts: TextParts) -> None:
    tokenizer = text_parts.tokenizer
    parts = dataclasses.replace(text_parts, infill=Infill(prefix=4, suffix=5, middle=6, end_ids=(7,)))
    requests: list[GenerateRequest] = []

    def script(request: GenerateRequest) -> list[int]:
        requests.append(request)
        return [500, 7, 600]

    server = ScriptedServer(parts, {}, {"script": script}, True)
    try:
        client = server.client()
        answer = client.completions.create(model=MODEL, prompt="def f(", suffix="):\n", max_tokens=9)
        before = tokenizer.encode("def f(", add_special_tokens=False)
        behind = tokenizer.encode("):\n", add_special_tokens=False)
        assert requests[-1].prompt == [4, *before, 5, *behind, 6]
        assert answer.choices[0].text == tokenizer.decode([500]), "the middle has an end of its own"
        assert answer.choices[0].finish_reason == "stop"
        with client.completions.create(model=MODEL, prompt="def f(", suffix="):\n", stream=True) as stream:
            assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text
        client.completions.create(model=MODEL, prompt=[[9], [8]], suffix=")")
        assert [request.prompt[1] for request in requests[-2:]] == [9, 8]
        # Marks that are written in a text are text there.
        client.completions.create(model=MODEL, prompt="<|im_end|>", suffix="<|im_end|>")
        assert 2 not in requests[-1].prompt
        assert server.complete(suffix=")", echo=True).json()["error"]["param"] == "echo"
        assert server.complete(suffix="").status_code == 200
    finally:
        server.close()


# --- thoughts are counted -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_tokens_of_thoughts_are_counted_however_they_come(text_parts: TextParts, cut: int) -> None:
    source = "{{ messages[0].content }}{% if false %}</think>{% endif %}"
    parts = dataclasses.replace(text_parts, template=ChatTemplate(source), formats=Formats.of(source))
    encode = parts.tokenizer.encode
    thoughts = encode("<think>\nWell, well. 🦊\n</think>")
    tokens = [*thoughts, *encode("\n\nYes."), 2]
    server = ScriptedServer(parts, {}, {"script": lambda request: tokens, "cut": cut}, True)
    try:
        for fields in ({}, {"logprobs": True}, {"stop": ["never"]}):
            usage = server.chat(**fields).json()["usage"]
            assert usage["completion_tokens_details"] == {"reasoning_tokens": len(thoughts)}
            assert usage["completion_tokens"] == len(tokens)
        whole = server.client().chat.completions.create(model=MODEL, messages=MESSAGES)
        assert whole.usage is not None
        assert whole.usage.completion_tokens_details is not None
        assert whole.usage.completion_tokens_details.reasoning_tokens == len(thoughts)
        assert server.complete().json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    finally:
        server.close()


# --- on the demo model ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(demo_server: RealServer) -> RealServer:
    return demo_server


def complete(real: RealServer, **fields: Any) -> Any:
    client: openai.OpenAI = real.client()
    asked = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
    return client.completions.create(**{"model": real.model, **asked, **fields})


def test_words_that_must_not_come(real: RealServer) -> None:
    free = complete(real).choices[0].text
    assert "Paris" in free
    held = complete(real, extra_body={"bad_words": ["Paris"]}).choices[0].text
    assert "Paris" not in held
    two = " ".join(held.split()[:2])
    again = complete(real, extra_body={"bad_words": ["Paris", two]}).choices[0].text
    assert two not in again
    assert again.split()[0] == held.split()[0], "one word of the two may come"


def test_only_allowed_tokens(real: RealServer, text_parts: TextParts) -> None:
    allowed = [id for word in (" red", " blue", " Paris") for id in text_parts.tokenizer.encode(word)]
    answer = complete(real, extra_body={"allowed_token_ids": allowed, "return_token_ids": True}).choices[0]
    assert set(answer.token_ids) <= set(allowed)
    assert answer.finish_reason == "length"


def test_log_probabilities_of_a_prompt_are_those_of_its_echo(real: RealServer) -> None:
    answer = complete(real, extra_body={"prompt_logprobs": 3}).choices[0]
    echoed = complete(real, echo=True, logprobs=3).choices[0].logprobs
    for place, value, top in zip(
        answer.prompt_logprobs, echoed.token_logprobs, echoed.top_logprobs, strict=False
    ):
        if place is None:
            assert value is None
            continue
        first, *_ = place.values()
        assert first["logprob"] == value
        ranked = {one["rank"]: one["logprob"] for one in place.values() if one["rank"]}
        assert [ranked[rank] for rank in (1, 2, 3)] == sorted(top.values(), reverse=True)


def test_structural_tags(real: RealServer) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    tag = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"}
    either = {"begin": "<g>", "content": {"type": "regex", "pattern": "[ab]{2}"}, "end": "</g>"}
    tree = {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "So: "},
            {"type": "tags_with_separator", "tags": [tag], "separator": ",", "at_least_one": True},
        ],
    }
    for seed in range(4):
        fields: Any = {"temperature": 1.0, "seed": seed, "max_tokens": 60}
        extra = {
            "structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": tree})}
        }
        text = complete(real, extra_body=extra, **fields).choices[0].text
        assert text.startswith('So: <f>{"n":')
        first = {
            "type": "triggered_tags",
            "triggers": ["<f", "<g"],
            "tags": [tag, either],
            "at_least_one": True,
        }
        wanted: Any = {"type": "structural_tag", "format": {**first, "stop_after_first": True}}
        asked = {"extra_body": {"response_format": wanted}, **fields}
        text = complete(real, **asked).choices[0].text
        assert text in ('<f>{"n":1}</f>', '<f>{"n":2}</f>', *(f"<g>{a}{b}</g>" for a in "ab" for b in "ab"))
    older: Any = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}],
        "triggers": ["<f>"],
    }
    for bias in ({}, {"17": 1}):
        text = complete(
            real, prompt="Repeat: <f><f><f>", extra_body={"response_format": older}, logit_bias=bias
        )
        pieces = text.choices[0].text.split("<f>")[1:]
        assert all(piece.startswith(('{"n":1}</f>', '{"n":2}</f>')) for piece in pieces[:-1])


def test_space_in_json(real: RealServer) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}},
        "required": ["a", "b"],
    }
    schema["additionalProperties"] = False
    extra = {"structured_outputs": {"json": schema, "whitespace_pattern": " "}}
    text = complete(real, extra_body=extra, max_tokens=40).choices[0].text
    assert json.loads(text) == {"a": 1, "b": 2}
    assert " " in text
    compact = complete(real, extra_body={"guided_json": schema}, max_tokens=40).choices[0].text
    assert compact == '{"a":1,"b":2}'


def test_calls_in_the_history_that_are_none(server: ScriptedServer) -> None:
    for calls, param in (
        (["x"], "messages[1].tool_calls[0]"),
        ([{}], "messages[1].tool_calls[0].function"),
        ([{"function": {}}], "messages[1].tool_calls[0].function.name"),
        ([{"function": {"name": 5}}], "messages[1].tool_calls[0].function.name"),
        ("x", "messages[1].tool_calls"),
    ):
        messages = [*MESSAGES, {"role": "assistant", "tool_calls": calls}]
        for path in ("/v1/chat/completions", "/tokenize"):
            found = server.post(path, {"model": MODEL, "messages": messages})
            assert found.status_code == 400, found.text
            assert found.json()["error"]["param"] == param
    # Without arguments there are none.
    call = {"function": {"name": "f"}}
    assert server.chat(messages=[*MESSAGES, {"role": "assistant", "tool_calls": [call]}]).status_code == 200
