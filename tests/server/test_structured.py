"""Answers of a wanted form: the unmodified `openai` client, real sockets, the demo model in its engine process."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
import sys
from enum import Enum
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest
from real_server import RealServer

from json_schemas import make_schema

pytestmark = pytest.mark.timeout(300)

MESSAGES: Any = [{"role": "user", "content": "Describe Marie Curie, a physicist born in Warsaw, as JSON."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "born": {"type": "integer", "minimum": 1800, "maximum": 2020},
        "fields": {
            "type": "array",
            "items": {"enum": ["physics", "chemistry"]},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["name", "born", "fields"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}


@pytest.fixture(scope="module")
def server(demo_server: RealServer) -> RealServer:
    return demo_server


@pytest.fixture(scope="module")
def client(server: RealServer) -> openai.OpenAI:
    return server.client()


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    model = client.models.list().data[0].id
    return client.chat.completions.create(
        **{"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 120, **fields}
    )


def joined(stream: Any) -> tuple[str, str | None, int]:
    text, reason, events = "", None, 0
    for chunk in stream:
        events += 1
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason, events


def test_a_schema(client: openai.OpenAI) -> None:
    choice = ask(client, response_format=FORMAT).choices[0]
    jsonschema.validate(json.loads(choice.message.content), PERSON)
    assert choice.finish_reason == "stop"
    text, reason, events = joined(ask(client, response_format=FORMAT, stream=True))
    assert (text, reason) == (choice.message.content, "stop")
    assert events > 5


def test_several_choices_and_log_probabilities(client: openai.OpenAI) -> None:
    fields: Any = {"response_format": FORMAT, "n": 3, "temperature": 1.0, "seed": 5, "logprobs": True}
    answer = ask(client, **fields)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), PERSON)
        entries = choice.logprobs.content
        assert "".join(entry.token for entry in entries) == choice.message.content
        # As likely as the model finds them, whether they were forced or not.
        assert min(entry.logprob for entry in entries) < -0.5
        assert max(entry.logprob for entry in entries) <= 0
    again = ask(client, **fields)
    assert [choice.message.content for choice in again.choices] == texts
    assert again.choices[0].logprobs == answer.choices[0].logprobs


def test_pydantic_models(client: openai.OpenAI) -> None:
    class Field(str, Enum):
        PHYSICS = "physics"
        CHEMISTRY = "chemistry"

    class Prize(pydantic.BaseModel):
        year: int = pydantic.Field(ge=1901, le=1920)
        field: Field

    class Scientist(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=30)
        kind: Literal["person"]
        prizes: list[Prize] = pydantic.Field(min_length=1, max_length=2)
        rival: Prize | None

    model = client.models.list().data[0].id
    answer = client.chat.completions.parse(
        model=model, messages=MESSAGES, temperature=0, max_tokens=200, response_format=Scientist
    )
    assert isinstance(answer.choices[0].message.parsed, Scientist)
    with client.chat.completions.stream(
        model=model, messages=MESSAGES, temperature=0, max_tokens=200, response_format=Scientist
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == answer.choices[0].message.parsed


@pytest.mark.parametrize("way", ["structured_outputs", "guided"])
def test_all_ways_of_asking(client: openai.OpenAI, way: str) -> None:
    def form(name: str, value: Any) -> dict[str, Any]:
        return {f"guided_{name}": value} if way == "guided" else {"structured_outputs": {name: value}}

    def chat(**extra: Any) -> str:
        return str(ask(client, extra_body=extra, max_tokens=60).choices[0].message.content)

    jsonschema.validate(json.loads(chat(**form("json", PERSON))), PERSON)
    jsonschema.validate(json.loads(chat(**form("json", json.dumps(PERSON)))), PERSON)
    assert re.fullmatch(r"[A-Z][a-z]{2,5} \d{4}", chat(**form("regex", r"^[A-Z][a-z]{2,5} \d{4}$")))
    assert chat(**form("choice", ["yes, naturally", "nein", "不知道"])) in (
        "yes, naturally",
        "nein",
        "不知道",
    )
    assert re.fullmatch(r"\d+ [+-] \d", chat(**form("grammar", 'root ::= [0-9]{1,3} " " [+-] " " [0-9]')))
    lark = 'start: pair ("," pair)? "."\npair: NAME "=" /[0-9]/\nNAME: "x" | "y"'
    assert re.fullmatch(r"[xy]=\d(,[xy]=\d)?\.", chat(**form("grammar", lark)))


def test_any_object(client: openai.OpenAI) -> None:
    short: Any = [{"role": "user", "content": "Go."}]
    for extra in (
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ):
        answer = ask(client, messages=short, extra_body=extra, temperature=1.0, n=8, seed=1, max_tokens=60)
        finished = [choice for choice in answer.choices if choice.finish_reason == "stop"]
        assert finished
        for choice in finished:
            assert isinstance(json.loads(choice.message.content), dict)
        for choice in answer.choices:
            assert choice.message.content.startswith("{")


def test_completions(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    answer = client.completions.create(
        model=model,
        prompt=["The answer is", "Marie Curie was born in"],
        max_tokens=40,
        temperature=0,
        extra_body={"structured_outputs": {"regex": r" [0-9]{4}"}},
    )
    for choice in answer.choices:
        assert re.fullmatch(r" [0-9]{4}", choice.text)
        assert choice.finish_reason == "stop"


def test_where_tokens_run_out_the_answer_says_so(client: openai.OpenAI) -> None:
    answer = ask(client, response_format=FORMAT, max_tokens=8)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.choices[0].message.content.startswith('{"name":"')


def test_stop_strings_end_it_all_the_same(client: openai.OpenAI) -> None:
    answer = ask(client, response_format=FORMAT, stop=["born"])
    assert answer.choices[0].message.content.endswith('","')
    assert answer.choices[0].finish_reason == "stop"


def test_what_has_no_answer_gets_a_400_before_the_first_token(client: openai.OpenAI) -> None:
    looping = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="no text that it allows"):
            ask(client, extra_body={"guided_json": looping}, stream=stream)
    with pytest.raises(openai.BadRequestError, match="unknown special token"):
        ask(client, extra_body={"guided_grammar": 'start: "a" <|nonsense|>'})


def test_schemas_of_all_kinds(client: openai.OpenAI) -> None:
    """A part of what `scripts/check_json_schemas.py` tries."""

    def finished(number: int) -> bool:
        schema = make_schema(number)
        answer = ask(
            client, extra_body={"guided_json": schema}, temperature=1.0, seed=number, max_tokens=160
        ).choices[0]
        if answer.finish_reason == "stop":
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer.message.content))
        return bool(answer.finish_reason == "stop")

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        done = list(pool.map(finished, range(32)))
    assert sum(done) >= 24


HOSTILE: list[dict[str, Any]] = [
    {"regex": "(a{1,1000}){1,1000}"},
    {"regex": "(.*a){50}"},
    {"regex": ".*(a|b).{30}x"},
    {"regex": "(?s:.){1,100000}"},
    {"json": {"enum": [f"value number {i} {i * 7919}" for i in range(5000)]}},
    {"json": {"type": "string", "minLength": 500_000, "maxLength": 1_000_000}},
    {
        "json": {
            "type": "object",
            "properties": {f"p{i}": {"type": "string", "pattern": "^[a-z]{1,20}$"} for i in range(500)},
        }
    },
    {
        "json": {
            "allOf": [
                {"anyOf": [{"type": "object", "properties": {f"a{i}{j}": {}}} for j in range(6)]}
                for i in range(6)
            ]
        }
    },
    {"grammar": 'start: a\na: a a a | "x" | "y" a "x"'},
    {"grammar": 'start: "a"{1,100000}'},
    {"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000},
]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_hostile_grammars_harm_nobody_else(server: RealServer, client: openai.OpenAI) -> None:
    """They may be refused or answered, but soon; the engine lives, and the answers of others are the same."""
    fields: Any = {"response_format": FORMAT, "temperature": 1.0, "seed": 8}
    want = ask(client, **fields).choices[0].message.content
    pid = server.engine_pid()

    def hostile(form: dict[str, Any]) -> int:
        try:
            ask(client, extra_body={"structured_outputs": form}, max_tokens=12, temperature=1.0, seed=1)
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        codes = pool.map(hostile, HOSTILE)
        others = [pool.submit(ask, client, **fields) for _ in range(4)]
        assert {other.result().choices[0].message.content for other in others} == {want}
        assert set(codes) <= {200, 400, 500}
    assert server.engine_pid() == pid


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_answer_goes_on_when_the_engine_dies(server: RealServer, client: openai.OpenAI) -> None:
    fields: Any = {"response_format": FORMAT, "temperature": 1.0, "seed": 3}
    want = ask(client, **fields).choices[0].message.content
    text = ""
    for number, chunk in enumerate(ask(client, stream=True, **fields)):
        if number == 4:
            pid = server.engine_pid()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        for choice in chunk.choices:
            text += choice.delta.content or ""
    assert text == want
