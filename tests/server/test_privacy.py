"""Prompts and answers appear nowhere: a server with everything on is asked marked questions over all of its endpoints,
and then all that it has written or tells is searched for the marks, in whatever form they might have got there.
"""

from __future__ import annotations

import base64
import itertools
import json
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from hook_server import HookServer
from real_server import launch

from otlp_receiver import Receiver
from tokentrail.answer.parts import load_text_parts
from tokentrail.engine.config import EngineConfig
from tokentrail.server.config import ServerConfig

PROMPT = "Quixobly Zanthremar wuvvick 秘密的标记"
"""What is asked; no word of it is any model's, or ours."""
ANSWER = "Frobnexil grumthwadle"
"""What a grammar makes the model answer."""
KEY = "sk-privkey-0123456789abcdef"
MODEL = "demo"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]


def forms(text: str) -> Iterator[bytes]:
    """A mark as it is, and as it may be written elsewhere."""
    for word in text.split():
        raw = word.encode()
        yield raw
        yield raw.lower()
        yield raw.hex().encode()
        yield urllib.parse.quote(word).encode()
        yield json.dumps(word)[1:-1].encode()
        yield repr(raw)[2:-1].encode()
        yield word.encode("utf-16-le")
        for shift in range(3):
            # Within longer base64, whatever stands before: the characters that are the word's alone.
            coded = base64.b64encode(b"\0" * shift + raw)
            yield coded[4 if shift else 0 : (shift + len(raw)) // 3 * 4]


def token_runs(text: str) -> Iterator[bytes]:
    """Their token ids, as JSON and Python write lists, as far as three of them are."""
    tokenizer = load_text_parts(None).tokenizer
    for start in (text, " " + text):
        ids = tokenizer.encode(start)[:4]
        yield ", ".join(map(str, ids)).encode()
        yield ",".join(map(str, ids)).encode()


MARKS = {mark for text in (PROMPT, ANSWER) for mark in (*forms(text), *token_runs(text)) if len(mark) >= 6}


def found(data: bytes) -> set[bytes]:
    return {mark for mark in MARKS if mark in data}


def test_marks_are_found_in_all_their_forms() -> None:
    for text in (PROMPT, ANSWER):
        for shift in range(3):
            assert found(base64.b64encode(b"x" * shift + text.encode()))
        assert found(json.dumps({"a": text}).encode())
        assert found(repr(text.encode()).encode())
        assert found(text.encode().hex().encode())
        assert found(urllib.parse.quote(text).encode())
        assert found(json.dumps(load_text_parts(None).tokenizer.encode(text)).encode())
    assert not found(b"nothing of it")


def requests() -> Iterator[tuple[str, Any]]:
    """To every endpoint that takes content, well and badly."""
    chosen = {"structured_outputs": {"choice": [ANSWER]}, "temperature": 0}
    chat = {"model": MODEL, "messages": MESSAGES, "max_tokens": 20}
    tool = {
        "type": "function",
        "function": {"name": "f", "description": PROMPT, "parameters": {"type": "object"}},
    }
    for stream in (False, True):
        yield "/v1/chat/completions", {**chat, **chosen, "stream": stream}
        yield (
            "/v1/completions",
            {"model": MODEL, "prompt": PROMPT, "stream": stream, "max_tokens": 20, **chosen},
        )
        yield "/v1/responses", {"model": MODEL, "input": PROMPT, "stream": stream, "max_output_tokens": 20}
        yield "/v1/messages", {"model": MODEL, "messages": MESSAGES, "max_tokens": 20, "stream": stream}
        yield (
            "/api/chat",
            {"model": MODEL, "messages": MESSAGES, "stream": stream, "options": {"num_predict": 5}},
        )
        yield (
            "/api/generate",
            {"model": MODEL, "prompt": PROMPT, "stream": stream, "options": {"num_predict": 5}},
        )
        yield "/completion", {"prompt": PROMPT, "n_predict": 5, "stream": stream}
        path = "/generate_stream" if stream else "/generate"
        yield path, {"inputs": PROMPT, "parameters": {"max_new_tokens": 5}}
    yield "/v1/chat/completions", {**chat, "tools": [tool], "logprobs": True, "top_logprobs": 2}
    yield "/v1/completions", {"model": MODEL, "prompt": PROMPT, "echo": True, "max_tokens": 3, "logprobs": 1}
    yield "/v1/embeddings", {"model": MODEL, "input": [PROMPT, ANSWER]}
    yield "/v1/moderations", {"input": PROMPT}
    yield "/v1/score", {"model": MODEL, "text_1": PROMPT, "text_2": ANSWER}
    yield "/v1/rerank", {"model": MODEL, "query": PROMPT, "documents": [ANSWER]}
    yield "/tokenize", {"model": MODEL, "prompt": PROMPT}
    yield "/infill", {"input_prefix": PROMPT, "input_suffix": ANSWER, "n_predict": 3}
    yield "/apply-template", {"messages": MESSAGES}
    # Mistakes, whose errors may quote what was sent.
    yield "/v1/chat/completions", {"model": PROMPT, "messages": MESSAGES}
    yield "/v1/chat/completions", {**chat, PROMPT: ANSWER}
    yield "/v1/chat/completions", {**chat, "temperature": PROMPT}
    yield "/v1/chat/completions", {**chat, "messages": [{"role": PROMPT, "content": ANSWER}]}
    yield "/v1/chat/completions", {**chat, "structured_outputs": {"regex": f"({PROMPT}"}}
    yield "/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": f"forbidden {PROMPT}"}]}
    yield "/v1/chat/completions", {**chat, "user": PROMPT, "metadata": {"a": ANSWER}}
    yield "/v1/completions", {"model": MODEL, "prompt": f"{PROMPT} " * 200}
    yield "/v1/completions", {"model": MODEL, "prompt": PROMPT, "stop": [ANSWER] * 100}
    yield "/v1/responses", {"model": MODEL, "input": [{"type": PROMPT, "content": ANSWER}]}
    yield "/v1/messages", {"model": MODEL, "messages": [{"role": PROMPT, "content": ANSWER}], "max_tokens": 1}
    yield "/v1/embeddings", {"model": MODEL, "input": {PROMPT: ANSWER}}
    yield "/api/chat", {"model": MODEL, "messages": PROMPT}
    yield f"/v1/{urllib.parse.quote(PROMPT)}", {}
    yield f"/v1/models/{urllib.parse.quote(PROMPT)}?{urllib.parse.urlencode({'q': ANSWER})}", None
    yield f"/v1/journeys/{urllib.parse.quote(PROMPT)}", None


class Told:
    """All that a server wrote and told, by where."""

    def __init__(self) -> None:
        self.by_place: dict[str, bytes] = {}
        self.statuses: list[int] = []
        """Of the lines of the access log."""

    def places(self) -> dict[str, set[bytes]]:
        return {place: marks for place, data in self.by_place.items() if (marks := found(data))}


def run(folder: Path, asked: Sequence[tuple[str, Any]], *, content: bool) -> Told:
    told = Told()
    receiver, hook = Receiver(), HookServer(lambda _: {"verdict": "allow"})
    data = folder / "data"
    data.mkdir()
    (data / "words.txt").write_text("forbidden\n", encoding="utf-8")
    (data / "deploy.yaml").write_text(
        f"""
database: sqlite:///tokentrail.db
ledger: {{}}
access_log: access.jsonl
tracing: {{endpoint: {receiver.url}}}
log_content: {str(content).lower()}
filters:
  - {{name: words, words_file: words.txt, action: block, applies_to: [input]}}
  - {{name: private, personal: [email, phone], action: mask}}
  - {{name: hook, hook: {{url: "{hook.url}"}}, action: log}}
""",
        encoding="utf-8",
    )
    engine = EngineConfig(max_model_len=512, max_num_seqs=8, kv_cache_memory=200 << 20)
    config = ServerConfig(
        port=0,
        engine=engine,
        served_model_names=(MODEL,),
        api_keys=(KEY,),
        deployment=str(data / "deploy.yaml"),
        log_level="debug",
    )
    process = launch(config)
    assert process.stdout is not None
    try:
        banner = process.stdout.readline()
        assert " at http://" in banner, process.communicate(timeout=30)
        url = banner.split(" at ")[1].strip().removesuffix("/v1")
        statuses = ask_all(url, asked)
        assert not any(status >= 500 for status in statuses), statuses
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
            told.by_place["metrics"] = client.get("/metrics").content
            listed = client.get("/v1/journeys?limit=1000")
            told.by_place["journeys"] = listed.content + b"".join(
                client.get(f"/v1/journeys/{one['id']}").content for one in listed.json()["data"]
            )
            assert len(listed.json()["data"]) >= statuses.count(200) // 2
    finally:
        process.terminate()
        out, log = process.communicate(timeout=60)
        receiver.close()
        hook.close()
    assert process.returncode == 0, log
    assert len(receiver.spans) > 4 * statuses.count(200)
    assert any(PROMPT in one["text"] for one in hook.asked)
    told.by_place["stdout"] = (banner + out).encode()
    told.by_place["stderr"] = log.encode()
    told.by_place["spans"] = b"".join(receiver.bodies)
    for file in data.rglob("*"):
        if file.is_file() and file.name not in ("deploy.yaml", "words.txt"):
            told.by_place[file.name] = file.read_bytes()
    assert {"access.jsonl", "tokentrail.db"} <= set(told.by_place)
    lines = [json.loads(line) for line in told.by_place["access.jsonl"].splitlines()]
    told.statuses = sorted(line["status"] for line in lines)
    return told


def ask_all(url: str, asked: Sequence[tuple[str, Any]]) -> list[int]:
    statuses = []
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
        for path, body in asked:
            response = client.get(path) if body is None else client.post(path, json=body)
            statuses.append(response.status_code)
        # A stream whose client leaves.
        body = {"model": MODEL, "prompt": PROMPT, "stream": True, "max_tokens": 300, "ignore_eos": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_bytes())
        statuses.append(client.post("/v1/completions", content=f'{{"prompt": "{PROMPT}'.encode()).status_code)
        headers = {"authorization": f"Bearer {ANSWER}"}
        statuses.append(client.get("/v1/models", headers=headers).status_code)
    return statuses


def test_prompts_and_answers_appear_nowhere(tmp_path: Path, demo_path: Path) -> None:
    told = run(tmp_path, list(requests()), content=False)
    assert told.places() == {}
    assert told.statuses.count(200) >= 15
    assert sum(400 <= status < 499 for status in told.statuses) >= 15
    key = {place for place, data in told.by_place.items() if KEY.encode() in data}
    assert key == set()


def test_with_log_content_they_appear_where_documented(tmp_path: Path, demo_path: Path) -> None:
    told = run(tmp_path, list(itertools.islice(requests(), 2)), content=True)
    places = told.places()
    assert set(places) == {"access.jsonl", "spans"}
    for marks in places.values():
        for text in (PROMPT, ANSWER):
            assert any(word.encode() in marks for word in text.split())
