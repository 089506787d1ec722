"""Filters over HTTP: prompts refused or masked, answers masked or ended, streams that never leak, moderations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import MODEL, MakeServer, ScriptedServer

from tokentrail.answer import AnswerRequest, ChatPrompt, TextPrompt
from tokentrail.answer.parts import TextParts
from tokentrail.gateway.filtering import FilteringBackend

RULES = """
filters:
  - {name: rude, words: [damn, 违禁词], action: mask, category: harassment}
  - {name: secret, pattern: "code[0-9]{3}", action: block}
  - {name: private, personal: [phone], action: mask, replacement: "[phone]"}
  - {name: odd, words: [fox], action: flag}
  - {name: 留意, words: [dog], action: flag}
"""
CALLS: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "deploy.yaml").write_text(RULES, encoding="utf-8")
    return str(tmp_path / "deploy.yaml")


class Says:
    """A server whose model says what the test wants."""

    def __init__(self, make_server: MakeServer, parts: TextParts, config: str) -> None:
        self.parts = parts
        self.tokens: list[int] = []
        self.server: ScriptedServer = make_server(
            engine={"script": lambda request: [*self.tokens, 2]}, deployment=config
        )

    def says(self, text: str) -> None:
        self.tokens = self.parts.tokenizer.encode(text)


@pytest.fixture
def model(make_server: MakeServer, text_parts: TextParts, config: str) -> Says:
    return Says(make_server, text_parts, config)


def streamed(server: ScriptedServer, **options: Any) -> tuple[str, str | None]:
    text, finish = "", None
    for chunk in server.client().chat.completions.create(model=MODEL, messages=CALLS, stream=True, **options):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
    return text, finish


@pytest.mark.parametrize(
    ("says", "shown", "finish"),
    [
        ("Oh damn, that is d a m n bad.", "Oh ****, that is ******* bad.", "stop"),
        ("这是違禁詞吗", "这是***吗", "stop"),
        ("Call 138-0013-8000 now", "Call [phone] now", "stop"),
        ("It is code123, go", "It is ", "content_filter"),
        ("All is well.", "All is well.", "stop"),
    ],
)
def test_answers_are_filtered_alike_whole_and_streamed(
    model: Says, says: str, shown: str, finish: str
) -> None:
    model.says(says)
    whole = model.server.client().chat.completions.create(model=MODEL, messages=CALLS)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (shown, finish)
    assert streamed(model.server) == (shown, finish)
    text = model.server.client().completions.create(model=MODEL, prompt="x", max_tokens=100)
    assert (text.choices[0].text, text.choices[0].finish_reason) == (shown, finish)
    assert not model.server.engine.running


def test_several_choices_end_each_on_its_own(model: Says) -> None:
    model.says("say code999 aloud")
    whole = model.server.client().chat.completions.create(model=MODEL, messages=CALLS, n=3)
    assert [(c.message.content, c.finish_reason) for c in whole.choices] == [("say ", "content_filter")] * 3
    texts = ["", "", ""]
    for chunk in model.server.client().chat.completions.create(model=MODEL, messages=CALLS, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["say "] * 3


def test_prompts_are_refused_masked_and_flagged(model: Says) -> None:
    model.says("fine")
    client = model.server.client()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "the code123"}])
    assert caught.value.code == "content_filter"
    assert caught.value.param == "messages"
    assert "'secret'" in caught.value.message
    assert "code123" not in caught.value.message
    response = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": [{"type": "text", "text": "damn fox and dog"}]}],
    )
    assert response.headers["x-tokentrail-flagged"] == "odd, %E7%95%99%E6%84%8F"
    prompt = model.parts.tokenizer.decode(model.server.engine.requests[-1].prompt)
    assert "**** fox and dog" in prompt
    assert "damn" not in prompt
    ids = model.parts.tokenizer.encode("a damn shame")
    with pytest.raises(openai.BadRequestError, match="cannot be: send it as text"):
        client.completions.create(model=MODEL, prompt=ids)


def test_prompts_keep_all_but_what_is_masked(make_server: MakeServer, config: str) -> None:
    server = make_server(deployment=config, trust_request_chat_template=True)
    gateway = server.state.gateway
    assert gateway is not None
    backend = gateway._filtering
    assert isinstance(backend, FilteringBackend)
    asked: list[AnswerRequest] = []
    inner = backend.inner.open

    async def watched(request: AnswerRequest) -> Any:
        asked.append(request)
        return await inner(request)

    backend.inner.open = watched  # type: ignore[method-assign]
    body = {"model": MODEL, "max_tokens": 1}
    server.post("/v1/completions", {**body, "prompt": "damn", "add_special_tokens": False})
    server.post("/v1/chat/completions", {**body, "messages": CALLS, "chat_template": "a damn shame"})
    (text,), (chat,) = (request.prompts for request in asked)
    assert text == TextPrompt("****", add_special_tokens=False)
    assert isinstance(chat, ChatPrompt)
    assert chat.template == "a **** shame"


def test_log_probabilities_and_ids_do_not_tell_what_is_masked(model: Says) -> None:
    model.says("Oh damn it all")
    body = {"model": MODEL, "messages": CALLS, "logprobs": True, "return_token_ids": True}
    whole = model.server.post("/v1/chat/completions", body).json()["choices"][0]
    said = "".join(entry["token"] for entry in whole["logprobs"]["content"])
    assert "damn" not in said
    assert "all" in said
    assert "damn" not in model.parts.tokenizer.decode(whole["token_ids"])
    body = {"model": MODEL, "messages": CALLS, "prompt_logprobs": 0}
    assert len(model.server.post("/v1/chat/completions", body).json()["prompt_logprobs"]) > 5


def test_matches_are_counted_and_named_but_never_quoted(
    model: Says, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model.says("Oh damn")
    model.server.client().chat.completions.create(model=MODEL, messages=CALLS)
    streamed(model.server)
    metrics = model.server.get("/metrics").text
    assert 'tokentrail_requests_total{model_name="demo",outcome="stop"} 2.0' in metrics
    assert 'tokentrail_filter_matches_total{action="mask",rule="rude",side="output"} 2.0' in metrics
    assert "the filter 'rude' found something in the output: mask" in caplog.text
    assert "damn" not in caplog.text


def test_rules_are_replaced_while_the_server_runs(model: Says, config: str) -> None:
    model.says("Oh damn, heck")
    Path(config).write_text("filters: [{name: new, words: [heck], action: mask}]", encoding="utf-8")
    assert model.server.state.gateway is not None
    model.server.state.gateway.reload()
    assert streamed(model.server)[0] == "Oh damn, ****"


def test_moderations(model: Says, make_server: MakeServer) -> None:
    result = model.server.client().moderations.create(input=["damn it", "good day"])
    assert [one.flagged for one in result.results] == [True, False]
    assert result.results[0].categories.harassment
    assert not result.results[0].categories.violence
    assert result.results[0].category_scores.harassment == 1.0
    parts = [{"type": "text", "text": "good"}, {"type": "text", "text": "damn"}]
    assert model.server.client().moderations.create(input=parts).results[0].flagged  # type: ignore[arg-type]
    wrong = model.server.post(
        "/v1/moderations", {"input": [{"type": "image_url", "image_url": {"url": "x"}}]}
    )
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input[0]")
    none = make_server().post("/v1/moderations", {"input": "x"})
    assert (none.status_code, none.json()["error"]["code"]) == (404, "no_filters")


PIECES = [
    "damn",
    "da",
    "mn",
    " ",
    "违",
    "禁",
    "词",
    "code",
    "12",
    "3",
    "138",
    "0013",
    "8000",
    "-",
    "fox",
    "👨‍👩‍👧",
    "é",
    ".",
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_a_stream_is_its_whole_answer(model: Says, pieces: list[str]) -> None:
    model.says("".join(pieces))
    body = {"model": MODEL, "messages": CALLS}
    (whole,) = model.server.post("/v1/chat/completions", body).json()["choices"]
    assert streamed(model.server) == (whole["message"]["content"] or "", whole["finish_reason"])


def test_arguments_of_calls_stay_json(make_server: MakeServer, text_parts: TextParts, config: str) -> None:
    import dataclasses

    from tokentrail.answer.parsing import Formats
    from tokentrail.text import ChatTemplate

    template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}<tool_call>{{ messages[-1].content }}"
    parts = dataclasses.replace(text_parts, template=ChatTemplate(template), formats=Formats.of(template))
    said = '<tool_call>\n{"name": "call", "arguments": {"number": 13800138000, "note": "damn"}}\n</tool_call>'
    server = ScriptedServer(
        parts, {"deployment": config}, {"script": lambda request: [*parts.tokenizer.encode(said), 2]}, True
    )
    try:
        tool: Any = {"type": "function", "function": {"name": "call", "parameters": {"type": "object"}}}
        answer = server.client().chat.completions.create(model=MODEL, messages=CALLS, tools=[tool])
        (call,) = answer.choices[0].message.tool_calls or ()
        assert json.loads(call.function.arguments) == {"number": 99999999999, "note": "****"}  # type: ignore[union-attr]
    finally:
        server.close()


def test_a_journey_tells_which_rules_found_something_and_never_what(model: Says) -> None:
    model.says("A damn fox said so.")
    question = {"model": MODEL, "messages": [{"role": "user", "content": "Does the dog call 13800138000?"}]}
    answer = model.server.post("/v1/chat/completions", question)
    assert answer.status_code == 200
    text = model.server.get(f"/v1/journeys/{answer.json()['id']}").text
    before, after = json.loads(text)["gateway"]
    assert (before["name"], before["facts"]) == ("filtered", {"rules": "private, 留意"})
    assert before["busy_seconds"] is None
    assert (after["name"], after["facts"]) == ("filtered out", {"rules": "rude, odd"})
    assert 0 < after["busy_seconds"] <= after["seconds"]
    assert before["start_at"] + before["seconds"] <= after["start_at"]
    assert not any(word in text for word in ("dog", "13800138000", "damn", "fox"))


def test_evasions_do_not_pass_the_server(
    make_server: MakeServer, text_parts: TextParts, tmp_path: Path
) -> None:
    """A few of each kind of those that `tests/gateway/test_evasions.py` tries all of."""
    listed = json.loads((Path(__file__).parents[1] / "gateway" / "evasions_by_hand.json").read_text("utf-8"))
    rules: list[dict[str, Any]] = [
        {"name": "words", "words": listed["words"]},
        {"name": "own", "personal": ["phone"]},
    ]
    path = tmp_path / "evasions.yaml"
    path.write_text(
        json.dumps({"filters": [{**rule, "action": "mask", "replacement": "[]"} for rule in rules]})
    )
    model = Says(make_server, text_parts, str(path))
    caught: dict[str, list[str]] = {}
    for one in listed["evasions"]:
        if not one.get("passes") and len(caught.setdefault(one["kind"], [])) < 2:
            caught[one["kind"]].append(one["text"])
    texts = [
        text for kind in caught if not kind.endswith(("cards", "keys", "addresses")) for text in caught[kind]
    ]
    assert len(texts) > 20
    for text in texts:
        before, rest = text.split("⟦")
        forbidden, after = rest.split("⟧")
        model.says(before + forbidden + after)
        messages: Any = [{"role": "user", "content": before + forbidden + after}]
        whole = model.server.client().chat.completions.create(model=MODEL, messages=messages)
        shown = whole.choices[0].message.content or ""
        assert "[]" in shown, text
        assert forbidden not in shown, text
        assert streamed(model.server)[0] == shown
        read = model.parts.tokenizer.decode(model.server.engine.requests[0].prompt)
        model.server.engine.requests.clear()
        assert "[]" in read, text
        assert forbidden not in read, text
