"""A stream, joined, is the answer as a whole, byte for byte, however tokens cut its characters and steps its tokens.

Over real sockets, with every parser of calls and thoughts; the answers are made of what these look for, of scripts that
need several bytes a character, and of characters that are made of several others.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scripted_server import MODEL, ScriptedServer

from tokentrail.answer.parsing import Formats
from tokentrail.answer.parts import TextParts
from tokentrail.protocol import GenerateRequest
from tokentrail.text import Tokenizer
from tokentrail.text.byte_level import BYTE_TO_CHARACTER
from tokentrail.text.reasoning import REASONING_FORMATS
from tokentrail.text.tool_calls import FORMATS

pytestmark = pytest.mark.timeout(300)

WORDS = [
    "北京欢迎你！",
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈",
    "e\u0301\u0323",
    "नमस्ते",
    "Ελλάδα",
    "\u2028",
    "\r\n\n",
    " ",
    '"',
    "\\",
    "The answer is ",
]
CALL = '{"name": "now", "arguments": {"city": "Köln 🏙️", "n": [1, {"é": null}]}}'
PIECES = [
    CALL,
    CALL[:-1],
    f"[{CALL}]",
    'now(city="北京", n=3)',
    '[now(city="👩‍👧")]',
    "now",
    'now{"city": "Ulm"}',
    "<function=now>\n<parameter=city>\n北京\n</parameter>\n</function>",
    "call:now{city:Ulm,n:2}",
    "function",
]
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
STOPS = ["北", "👧", "\u0323", '"', "}}"]


def answers(calls: str, thoughts: str | None) -> st.SearchStrategy[str]:
    marks = [*FORMATS[calls].markers, *(REASONING_FORMATS[thoughts].markers if thoughts else ())]
    part = st.one_of(st.sampled_from(WORDS), st.sampled_from([*marks, *PIECES, *WORDS]), st.text(max_size=4))
    return st.lists(part, min_size=1, max_size=12).map("".join)


def tokens_of(text: str, tokenizer: Tokenizer, draw: random.Random) -> list[int]:
    """Some tokens of `text`: its bytes are cut anywhere; pieces of whole characters are written with words."""
    data = text.encode("utf-8", "replace")
    ids: list[int] = []
    at = 0
    while at < len(data):
        piece = data[at : at + draw.choice((1, 1, 2, 3, 7, 20))]
        at += len(piece)
        try:
            ids += tokenizer.encode(piece.decode(), add_special_tokens=False, parse_special=False)
        except UnicodeDecodeError:
            found = [tokenizer.token_to_id(BYTE_TO_CHARACTER[byte]) for byte in piece]
            ids += [id for id in found if id is not None]  # the vocabulary lacks a few rare bytes
    return ids


class Speaker:
    """A server whose model writes given tokens, so many a step, and marks them as a given format does."""

    def __init__(self, parts: TextParts) -> None:
        self.parts = parts
        self.tokens: list[int] = []
        self.cut: list[int] = [1]
        self.turn = 0
        self.server = ScriptedServer(parts, {}, {"script": self._say, "cut": self._cut}, True)

    def _say(self, request: GenerateRequest) -> list[int]:
        return self.tokens

    def _cut(self) -> int:
        self.turn += 1
        return self.cut[self.turn % len(self.cut)]

    def speaks(self, calls: str, thoughts: str | None) -> None:
        formats = Formats(FORMATS[calls], REASONING_FORMATS[thoughts] if thoughts else None)
        self.server.state.backend.desk.parts = dataclasses.replace(self.parts, formats=formats)  # type: ignore[union-attr]

    def whole(self, path: str, body: dict[str, Any]) -> Any:
        return self.server.post(path, body).json()

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        response = self.server.post(path, {**body, **options})
        # The wire's own lines: nothing in a text may break them.
        lines = [line for line in response.text.split("\n\n") if line]
        assert lines[-1] == "data: [DONE]", response.text
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.fixture(scope="module")
def speaker(text_parts: TextParts) -> Iterator[Speaker]:
    made = Speaker(text_parts)
    yield made
    made.server.close()


def chat_of(choice: Any, usage: Any) -> dict[str, Any]:
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "thoughts": message.get("reasoning_content", ""),
        "calls": [
            [call["function"]["name"], call["function"]["arguments"]]
            for call in message.get("tool_calls", ())
        ],
        "logprobs": (choice["logprobs"] or {}).get("content"),
        "ids": choice.get("token_ids", []),
        "end": (choice["finish_reason"], choice.get("stop_reason")),
        "usage": {**usage, "prompt_tokens_details": None},
    }


def joined_chat(events: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "content": "",
        "thoughts": "",
        "calls": [],
        "logprobs": None,
        "ids": [],
        "end": None,
    }
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            found["content"] += delta.get("content") or ""
            found["thoughts"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    found["calls"].append([call["function"]["name"], ""])
                found["calls"][call["index"]][1] += call["function"]["arguments"]
            if choice["logprobs"] is not None:
                found["logprobs"] = (found["logprobs"] or []) + choice["logprobs"]["content"]
            found["ids"] += choice.get("token_ids", [])
            if choice["finish_reason"]:
                assert found["end"] is None
                found["end"] = (choice["finish_reason"], choice.get("stop_reason"))
    found["usage"] = {**events[-1]["usage"], "prompt_tokens_details": None}
    return found


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "logprobs": st.just(True),
        "top_logprobs": st.just(2),
        "stop": st.lists(st.sampled_from(STOPS), min_size=1, max_size=2),
        "include_stop_str_in_output": st.just(True),
        "return_token_ids": st.just(True),
        "min_tokens": st.just(3),
        "max_tokens": st.integers(3, 30),
    },
)
FAST = (Phase.explicit, Phase.reuse, Phase.generate)
"""Each example is four requests; making a failing one smaller would take minutes."""
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.parametrize("calls", sorted(FORMATS))
@settings(max_examples=4, deadline=None, suppress_health_check=QUIET, phases=FAST)
@given(
    data=st.data(),
    fields=FIELDS,
    cut=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_chat(
    speaker: Speaker, calls: str, data: st.DataObject, fields: dict[str, Any], cut: list[int], seed: int
) -> None:
    thoughts = data.draw(st.sampled_from([None, None, *sorted(REASONING_FORMATS)]))
    speaker.speaks(calls, thoughts)
    text = data.draw(answers(calls, thoughts))
    speaker.tokens = [*tokens_of(text, speaker.parts.tokenizer, random.Random(seed)), 2]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hi"}],
        "seed": 1,
        "tools": TOOLS,
        **fields,
    }
    if "logprobs" not in fields:
        body.pop("top_logprobs", None)
    body["min_tokens"] = min(body.get("min_tokens", 0), len(speaker.tokens))
    speaker.cut = [1]
    answer = speaker.whole("/v1/chat/completions", body)
    whole = chat_of(answer["choices"][0], answer["usage"])
    assert joined_chat(speaker.events("/v1/chat/completions", body)) == whole
    # However many tokens a step brings, it is the same answer.
    speaker.cut = cut
    answer = speaker.whole("/v1/chat/completions", body)
    assert chat_of(answer["choices"][0], answer["usage"]) == whole
    assert joined_chat(speaker.events("/v1/chat/completions", body)) == whole
    shown = whole["content"] + whole["thoughts"] + "".join(name + value for name, value in whole["calls"])
    if not fields.keys() & {"stop", "max_tokens"}:
        said = speaker.parts.tokenizer.decode(speaker.tokens[:-1])
        assert ("\ufffd" in shown) <= ("\ufffd" in said), "no character was cut in two"


def completion_of(choice: Any, usage: Any) -> dict[str, Any]:
    return {
        "text": choice["text"],
        "logprobs": choice["logprobs"],
        "ids": choice.get("token_ids", []),
        "end": (choice["finish_reason"], choice.get("stop_reason")),
        "usage": {**usage, "prompt_tokens_details": None},
    }


def joined_completion(events: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"text": "", "logprobs": None, "ids": [], "end": None}
    for event in events:
        for choice in event["choices"]:
            found["text"] += choice["text"]
            found["ids"] += choice.get("token_ids", [])
            if choice["logprobs"] is not None:
                found["logprobs"] = found["logprobs"] or {name: [] for name in choice["logprobs"]}
                for name, values in choice["logprobs"].items():
                    found["logprobs"][name] += values
            if choice["finish_reason"]:
                found["end"] = (choice["finish_reason"], choice.get("stop_reason"))
    found["usage"] = {**events[-1]["usage"], "prompt_tokens_details": None}
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=QUIET, phases=FAST)
@given(
    text=st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), min_size=1, max_size=12).map(
        "".join
    ),
    fields=FIELDS,
    cut=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    echo=st.booleans(),
)
def test_completions(
    speaker: Speaker, text: str, fields: dict[str, Any], cut: list[int], seed: int, echo: bool
) -> None:
    speaker.tokens = [*tokens_of(text, speaker.parts.tokenizer, random.Random(seed)), 2]
    body = {"model": MODEL, "prompt": "北京: e\u0301", "seed": 1, "echo": echo, "max_tokens": 200, **fields}
    top = body.pop("top_logprobs", 0)
    if body.pop("logprobs", False):
        body["logprobs"] = top
    body["min_tokens"] = min(body.get("min_tokens", 0), len(speaker.tokens))
    speaker.cut = [1]
    answer = speaker.whole("/v1/completions", body)
    whole = completion_of(answer["choices"][0], answer["usage"])
    assert joined_completion(speaker.events("/v1/completions", body)) == whole
    speaker.cut = cut
    answer = speaker.whole("/v1/completions", body)
    assert completion_of(answer["choices"][0], answer["usage"]) == whole
    assert joined_completion(speaker.events("/v1/completions", body)) == whole
    if "stop" not in fields and "max_tokens" not in fields:
        prompt = body["prompt"] if echo else ""
        said = speaker.parts.tokenizer.decode(speaker.tokens[:-1])
        assert whole["text"] == prompt + said
