"""The dialect of llama.cpp's server, which has no client of its own: raw."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_engine import logprob
from scripted_server import MODEL, TEXT, TEXTS, MakeServer, ScriptedServer

from tokentrail.answer import TextPrompt
from tokentrail.answer.parts import TextParts
from tokentrail.protocol import Overloaded, TokentrailError
from tokentrail.text import Infill


def complete(server: ScriptedServer, prompt: Any = "Hi", **body: Any) -> Any:
    response = server.post("/completion", {"prompt": prompt, **body})
    assert response.status_code == 200, response.text
    return response.json()


def stream(server: ScriptedServer, prompt: Any = "Hi", **body: Any) -> list[dict[str, Any]]:
    response = server.post("/completion", {"prompt": prompt, "stream": True, **body})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "[DONE]" not in response.text
    return [json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-1]]


def ids(server: ScriptedServer, text: str) -> list[int]:
    return server.state.ready_backend().tokenize(TextPrompt(text))


def test_whole(server: ScriptedServer) -> None:
    answer = complete(server, "Hi there", seed=3)
    assert answer["content"] == TEXT
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "eos", "")
    assert (answer["model"], answer["prompt"], answer["truncated"]) == (MODEL, "Hi there", False)
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (2, len(server.tokens))
    assert (answer["tokens_cached"], answer["tokens"], answer["has_new_line"]) == (1, [], True)
    used = answer["generation_settings"]
    assert (used["seed"], used["temperature"], used["n_ctx"], used["n_predict"]) == (3, 1.0, 512, -1)
    timings = answer["timings"]
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (1, 1, len(server.tokens))
    assert timings["predicted_per_second"] == pytest.approx(
        1e3 * timings["predicted_n"] / timings["predicted_ms"]
    )
    assert server.post("/completions", {"prompt": "Hi"}).json()["content"] == TEXT


def test_streamed(server: ScriptedServer) -> None:
    *parts, last = stream(server)
    assert "".join(part["content"] for part in parts) == TEXT
    assert all(part["stop"] is False for part in parts)
    assert [token for part in (*parts, last) for token in part["tokens"]] == server.tokens
    assert (last["content"], last["stop"], last["stop_type"]) == ("", True, "eos")
    assert last["tokens_predicted"] == len(server.tokens)
    assert "timings" not in parts[0]
    assert "timings" in stream(server, timings_per_token=True)[0]


def test_why_it_ended(server: ScriptedServer) -> None:
    cut = complete(server, n_predict=3, return_tokens=True)
    assert (cut["content"], cut["stop_type"], cut["truncated"]) == ("The quick brown", "limit", False)
    assert cut["tokens"] == server.tokens[:3]
    stopped = complete(server, stop=["fox", "jumps"])
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == (
        "The quick brown ",
        "word",
        "fox",
    )
    endless = complete(server, ignore_eos=True, n_predict=100_000)
    assert server.engine.requests[-1].sampling.max_tokens == 511
    assert endless["stop_type"] == "limit"


def test_prompts(server: ScriptedServer) -> None:
    def asked(prompt: Any) -> list[list[int]]:
        before = len(server.engine.requests)
        answer = complete(server, prompt)
        prompts = [request.prompt for request in server.engine.requests[before:]]
        if isinstance(answer, list):
            assert [one["index"] for one in answer] == list(range(len(prompts)))
        else:
            assert len(prompts) == 1
        return prompts

    assert asked("Hi there") == [ids(server, "Hi there")]
    assert asked([5, 6, 7]) == [[5, 6, 7]]
    assert asked([5, "Hi there", 7]) == [[5, *ids(server, "Hi there"), 7]]
    assert asked({"prompt_string": "Hi"}) == [ids(server, "Hi")]
    assert asked(["Hi", "you"]) == [ids(server, "Hi"), ids(server, "you")]
    assert asked(["Hi"]) == [ids(server, "Hi")]
    assert asked([[5, 6], "Hi", {"prompt_string": "you"}, ["Hi", 9]]) == [
        [5, 6],
        ids(server, "Hi"),
        ids(server, "you"),
        [*ids(server, "Hi"), 9],
    ]


def test_several_answers_streamed(server: ScriptedServer) -> None:
    parts = stream(server, ["Hi", "you"], n_cmpl=2)
    for index in range(4):
        mine = [part for part in parts if part["index"] == index]
        assert "".join(part["content"] for part in mine) == TEXT
        assert mine[-1]["stop"]
        assert mine[-1]["prompt"] == ("Hi", "you")[index // 2]


def test_only_reading_the_prompt(server: ScriptedServer) -> None:
    answer = complete(server, "Hi there", n_predict=0)
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")
    (last,) = stream(server, "Hi there", n_predict=0)
    assert (last["content"], last["stop"]) == ("", True)


def test_options(server: ScriptedServer) -> None:
    used = complete(
        server,
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        min_p=0.25,
        repeat_penalty=1.5,
        repeat_last_n=64,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        seed=3,
        n_predict=9,
        typical_p=0.5,
        # As programs send them, all turned off.
        mirostat=0,
        mirostat_tau=5,
        dry_multiplier=0,
        dry_sequence_breakers=["\n"],
        xtc_probability=0.0,
        dynatemp_range=0,
        samplers=["top_k", "temperature"],
        cache_prompt=True,
        id_slot=-1,
        n_keep=4,
        t_max_predict_ms=0,
        lora=[],
    )["generation_settings"]
    wanted = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.75,
        "min_p": 0.25,
        "repeat_penalty": 1.5,
        "seed": 3,
        "typical_p": 0.5,
    }
    assert {**used, **wanted, "n_predict": 9} == used
    sampling = server.engine.requests[-1].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, 0.25)
    assert complete(server, temperature=-1.0)["generation_settings"]["temperature"] == 0
    assert complete(server, seed=4294967295)["generation_settings"]["seed"] != 4294967295


def test_biases(server: ScriptedServer) -> None:
    def biases(given: Any) -> dict[int, float]:
        complete(server, logit_bias=given)
        return server.engine.requests[-1].sampling.logit_bias

    (hello,) = ids(server, " hello")
    assert biases([[7, 1.5], [8, False], [" hello", -2]]) == {7: 1.5, 8: -100, hello: -2}
    assert biases({"7": 1, " hello": False}) == {7: 1, hello: -100}
    assert biases([]) == {}


def test_forms(server: ScriptedServer) -> None:
    complete(server, json_schema={"type": "object", "properties": {"age": {"type": "integer"}}})
    assert '"age"' in (server.engine.requests[-1].grammar or "")
    complete(server, json_schema={})
    assert server.engine.requests[-1].grammar is not None
    complete(server, grammar='root ::= "yes" | "no"')
    assert "yes" in (server.engine.requests[-1].grammar or "")
    complete(server, grammar="")
    assert server.engine.requests[-1].grammar is None


def test_probabilities(server: ScriptedServer) -> None:
    entries = complete(server, n_probs=2)["completion_probabilities"]
    assert [entry["id"] for entry in entries] == server.tokens
    assert [entry["logprob"] for entry in entries] == [logprob(id) for id in server.tokens]
    assert b"".join(bytes(entry["bytes"]) for entry in entries[:-1]).decode() == TEXT
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(entries)
    assert set(entries[0]["top_logprobs"][0]) == {"id", "token", "bytes", "logprob"}
    parts = stream(server, n_probs=2)
    assert [entry for part in parts for entry in part.get("completion_probabilities", ())] == entries


def test_the_fields_that_are_asked_for(server: ScriptedServer) -> None:
    fields = ["content", "generation_settings/n_predict", "nothing", "content/deeper"]
    assert complete(server, n_predict=2, response_fields=fields) == {
        "content": "The quick",
        "generation_settings/n_predict": 2,
    }


def test_templates(server: ScriptedServer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    prompt = server.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert server.post("/apply-template", {"messages": []}).status_code == 400


def test_filling_in_the_middle(text_parts: TextParts, server: ScriptedServer) -> None:
    refused = server.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, 400)
    parts = dataclasses.replace(text_parts, infill=Infill(prefix=4, suffix=5, middle=6))
    coder = ScriptedServer(parts, {}, {}, True)
    try:
        extra = [{"filename": "a.py", "text": "import b"}]
        body = {"input_prefix": "def f(", "input_suffix": "):", "prompt": "x", "input_extra": extra}
        answer = coder.post("/infill", {**body, "samplers": ["top_k"], "t_max_predict_ms": 0}).json()
        assert answer["content"] == TEXT
        encode = text_parts.tokenizer.encode
        prompt = [4, *encode("a.py\nimport b\ndef f(x"), 5, *encode("):"), 6]
        assert coder.engine.requests[-1].prompt == prompt
        events = coder.post("/infill", {**body, "stream": True}).text.split("\n\n")[:-1]
        assert "".join(json.loads(event[6:])["content"] for event in events) == TEXT
    finally:
        coder.close()


CODE = "b):\n        if a:\n\n            return b\n        return a\n    pass\n        x\n"


@pytest.mark.parametrize(
    ("limits", "lines"),
    [
        ({"n_indent": 8}, 5),
        ({"n_indent": 4}, 7),
        ({"n_indent": 9}, 1),
        ({"n_indent": 0, "t_max_predict_ms": -1}, 7),
        # The first line is complete with the first token or behind it; the second one is behind it.
        ({"t_max_predict_ms": 1e-6}, 1),
        ({"t_max_predict_ms": 1e-6, "stop": ["):"]}, 0),
        ({"t_max_predict_ms": 600_000, "n_indent": 8}, 5),
    ],
)
@pytest.mark.parametrize("cut", [1, 4])
def test_what_editors_ask_for(text_parts: TextParts, limits: dict[str, Any], lines: int, cut: int) -> None:
    """A request of llama.vim's and llama.vscode's."""
    parts = dataclasses.replace(text_parts, infill=Infill(prefix=4, suffix=5, middle=6))
    tokens = [*text_parts.tokenizer.encode(CODE), 2]
    coder = ScriptedServer(parts, {}, {"script": lambda request: tokens, "cut": cut}, True)
    fields = ["content", "timings/prompt_n", "timings/predicted_n", "truncated", "tokens_cached", "stop_type"]
    body: dict[str, Any] = {
        "input_prefix": "class A:\n",
        "input_suffix": "\n",
        "input_extra": [{"text": "import b\n", "time": [1, 2], "filename": "b.py"}],
        "prompt": "    def f(a, ",
        "n_predict": 256,
        "top_k": 40,
        "top_p": 0.99,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        **limits,
    }
    expected = "".join(CODE.splitlines(keepends=True)[:lines]) or "b"
    whole = lines == len(CODE.splitlines())
    if not whole and "n_indent" in limits:  # what stands before the line that is too short is there
        expected += " " * (len(rest := CODE[len(expected) :]) - len(rest.lstrip(" ")))
    try:
        answer = coder.post("/infill", {**body, "stream": False, "response_fields": fields}).json()
        assert answer["content"] == expected
        assert answer["stop_type"] == ("eos" if whole else "limit" if lines else "word")
        assert answer["truncated"] is False
        assert answer["timings/predicted_n"] <= len(tokens)
        events = coder.post("/infill", {**body, "stream": True}).text.split("\n\n")[:-1]
        parts_of_it = [json.loads(event[6:]) for event in events]
        assert "".join(part["content"] for part in parts_of_it) == expected
        assert parts_of_it[-1]["stop_type"] == answer["stop_type"]
        # What it sends to have its other texts read beforehand.
        read = {**body, "input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "samplers": []}
        assert coder.post("/infill", {**read, "response_fields": [""]}).json() == {}
    finally:
        coder.close()


def test_embeddings(server: ScriptedServer) -> None:
    openai = server.client().embeddings.create(model=MODEL, input="Hello").data[0].embedding
    assert server.post("/embedding", {"content": "Hello"}).json() == [{"index": 0, "embedding": [openai]}]
    several = server.post("/embeddings", {"input": ["Hello", [5, 6]]}).json()
    assert [one["index"] for one in several] == [0, 1]
    raw = server.post("/embedding", {"content": "Hello", "embd_normalize": -1}).json()[0]["embedding"][0]
    assert len(raw) == len(openai)
    for body, words in (({}, "provide content"), ({"content": "a", "embd_normalize": 1}, "embd_normalize")):
        response = server.post("/embedding", body)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]


def test_props_and_slots(make_server: MakeServer) -> None:
    server = make_server(engine={"first_delay": 30.0})
    props = server.get("/props").json()
    assert (props["total_slots"], props["model_alias"]) == (64, MODEL)
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["temperature"] == 1
    assert "im_start" in props["chat_template"]
    assert "/" not in props["model_path"]
    with httpx.stream("POST", server.url + "/completion", json={"prompt": "Hi", "stream": True}):
        taken = [slot["is_processing"] for slot in server.get("/slots").json()]
    assert taken == [True] + [False] * 63
    assert server.get("/slots?fail_on_no_slot=1").status_code == 200
    assert server.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "You must provide prompt"),
        ({"prompt": []}, "prompt must not be an empty list"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": [5, ["a"]]}, "prompt[1]"),
        ({"prompt": [5, 99999999]}, "99999999"),
        ({"prompt": "a", "temperature": 3}, "temperature must be"),
        ({"prompt": "a", "repeat_penalty": 0}, "repeat_penalty must be"),
        ({"prompt": "a", "top_k": "7"}, "top_k"),
        ({"prompt": "a", "mirostat": 2}, "mirostat is not supported"),
        ({"prompt": "a", "xtc_probability": 0.5}, "xtc_probability is not supported"),
        ({"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs is not supported"),
        ({"prompt": "a", "n_probs": 21}, "n_probs must be from 0 to 20"),
        ({"prompt": "a", "lora": [{"id": 0, "scale": 1}]}, "lora is not supported"),
        ({"prompt": "a", "logit_bias": [[7]]}, "logit_bias must have pairs"),
        ({"prompt": "a", "logit_bias": [[True, 1]]}, "logit_bias must have pairs"),
        ({"prompt": "a", "logit_bias": [[7, True]]}, "logit_bias must have numbers or false"),
        ({"prompt": "a", "logit_bias": [[99999999, 1]]}, "logit_bias must be from 0"),
        ({"prompt": "a", "grammar": "root ::= ("}, "grammar"),
        ({"prompt": "a", "json_schema": {"not": {}}}, "json_schema"),
        ({"prompt": "a", "json_schema": {}, "grammar": 'root ::= "a"'}, "one form only"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["AA=="]}}, "prompt.multimodal_data"),
        ({"prompt": ["a"] * 600, "n_cmpl": 2}, "at most 1024"),
    ],
)
def test_what_is_wrong_is_named(server: ScriptedServer, body: dict[str, Any], words: str) -> None:
    response = server.post("/completion", body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert words in error["message"]


def test_errors_have_their_shape(make_server: MakeServer) -> None:
    server = make_server(engine={"error": Overloaded("Too much."), "error_after": 0})
    busy = server.post("/completion", {"prompt": "a"})
    assert (busy.status_code, busy.json()["error"]["code"]) == (429, 429)
    unknown = server.post("/completion", {"prompt": "a", "model": "other"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    broken = make_server(engine={"error": TokentrailError("It broke."), "error_after": 3})
    *parts, last = stream(broken)
    assert "".join(part["content"] for part in parts) == "The quick brown"
    assert last["error"]["message"] == "It broke."
    locked = make_server(api_keys=("secret",))
    refused = locked.post("/completion", {"prompt": "a"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")


def test_it_can_be_turned_off(make_server: MakeServer) -> None:
    server = make_server(llama_cpp_api=False)
    assert server.post("/completion", {"prompt": "Hi"}).status_code == 404
    assert server.get("/props").status_code == 404


def test_streams_joined_are_the_whole_answer(make_server: MakeServer, text_parts: Any) -> None:
    tokens: list[int] = []
    cuts = iter(())
    server = make_server(engine={"script": lambda request: tokens, "cut": lambda: next(cuts, 1)})

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(TEXTS, st.lists(st.integers(1, 3)), st.booleans(), st.sampled_from([0, 2]))
    def check(text: str, sizes: list[int], stop: bool, n_probs: int) -> None:
        nonlocal tokens, cuts
        tokens = [*text_parts.tokenizer.encode(text), 2]
        body = {"stop": ["文🦊", "é"] if stop else [], "n_probs": n_probs, "return_tokens": True}
        cuts = iter(sizes)
        streamed = stream(server, **body)
        cuts = iter(())
        whole = complete(server, **body)
        assert "".join(part["content"] for part in streamed) == whole["content"]
        if not stop:
            assert whole["content"] == text
        assert [token for part in streamed for token in part["tokens"]] == whole["tokens"]
        for name in ("stop_type", "stopping_word", "tokens_predicted", "has_new_line"):
            assert streamed[-1][name] == whole[name]

    check()
