"""Answers from memory: the same bytes, streamed or not, to who asked the same, and to nobody else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from tokentrail.answer import AnswerRequest, TextPrompt
from tokentrail.gateway.caching import ResponseCache, key_of
from tokentrail.gateway.config import CacheSettings
from tokentrail.protocol import SamplingParams

CALLS: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def cached(make_server: MakeServer, tmp_path: Path) -> ScriptedServer:
    (tmp_path / "deploy.yaml").write_text(
        "cache: {memory_mib: 1, lifetime_s: 60}\nfilters: [{name: f, words: [lazy], action: mask}]",
        encoding="utf-8",
    )
    return make_server(deployment=str(tmp_path / "deploy.yaml"), api_keys=("a", "b"))


def streamed(server: ScriptedServer, key: str, **options: Any) -> str:
    chunks = server.client(key).chat.completions.create(model=MODEL, messages=CALLS, stream=True, **options)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_the_same_question_is_answered_once(cached: ScriptedServer) -> None:
    shown = TEXT.replace("lazy", "****")
    create = cached.client("a").chat.completions.with_raw_response.create
    first = create(model=MODEL, messages=CALLS, temperature=0)
    again = create(model=MODEL, messages=CALLS, temperature=0)
    assert first.parse().choices[0].message.content == again.parse().choices[0].message.content == shown
    assert len(cached.engine.requests) == 1
    assert "x-tokentrail-served-by" not in first.headers
    assert again.headers["x-tokentrail-served-by"] == "cache"
    assert again.parse().id != first.parse().id
    assert again.parse().system_fingerprint == first.parse().system_fingerprint
    usage = again.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens
    # Streams too, in either order.
    assert streamed(cached, "a", temperature=0) == shown
    assert len(cached.engine.requests) == 1
    assert streamed(cached, "a", seed=5) == shown
    assert streamed(cached, "a", seed=5) == shown
    assert len(cached.engine.requests) == 2
    metrics = cached.http.get(cached.url + "/metrics").text
    assert 'tokentrail_response_cache_total{result="hit"} 3.0' in metrics
    journey = cached.get(f"/v1/journeys/{again.parse().id}", headers={"authorization": "Bearer a"}).json()
    assert (journey["served_by"], journey["outcome"]) == ("cache", "stop")


def test_others_and_other_questions_are_asked_anew(cached: ScriptedServer) -> None:
    for number, (key, options) in enumerate(
        [
            ("a", {"temperature": 0}),
            ("b", {"temperature": 0}),
            ("a", {"temperature": 0, "max_tokens": 5}),
            ("a", {"temperature": 0, "n": 2}),
            ("a", {"temperature": 0, "stop": ["fox"]}),
            ("a", {"seed": 1}),
            ("a", {"seed": 2}),
            ("a", {}),
            ("a", {}),
        ]
    ):
        before = len(cached.engine.requests)
        streamed(cached, key, **options)
        assert len(cached.engine.requests) > before, number


def test_what_was_cut_off_is_not_kept(cached: ScriptedServer) -> None:
    cached.engine.delay = 0.05
    stream = cached.client("a").completions.create(model=MODEL, prompt="x", temperature=0, stream=True)
    next(iter(stream))
    stream.close()
    while cached.state.active:
        time.sleep(0.01)
    cached.engine.delay = 0.0
    before = len(cached.engine.requests)
    assert cached.client("a").completions.create(model=MODEL, prompt="x", temperature=0).choices[0].text
    assert len(cached.engine.requests) == before + 1


def request(prompt: str = "x", **sampling: Any) -> AnswerRequest:
    return AnswerRequest(
        id="1", prompts=[TextPrompt(prompt)], sampling=SamplingParams(**sampling), model="m", endpoint="e"
    )


def test_only_what_is_sure_to_be_the_same_has_a_key() -> None:
    assert key_of(request()) is None
    assert key_of(request(temperature=0.0)) == key_of(request(temperature=0.0))
    assert key_of(request(seed=1)) != key_of(request(seed=2))
    left = request(temperature=0.0)
    left.unset = ["temperature"]
    assert key_of(left) is None


def test_answers_leave_by_age_and_by_size() -> None:
    now = 0.0
    cache = ResponseCache(CacheSettings(memory_mib=1, lifetime_s=10), clock=lambda: now)

    def answer(text: str) -> Any:
        from tokentrail.answer import Chunk, Usage
        from tokentrail.gateway.caching import _Kept

        return _Kept(1, "fp", [[1]], SamplingParams(), Usage(), 1, [Chunk(0, text, finish_reason="stop")], {})

    cache.put(b"1", answer("one"))
    assert cache.get(b"1").chunks[0].text == "one"
    now = 10.0
    assert cache.get(b"1") is None
    assert cache.size == 0
    for number in range(12):
        cache.put(b"%d" % number, answer("x" * 200_000))
        cache.get(b"0")
    assert cache.size <= 2**20
    assert cache.get(b"0") is not None
    assert cache.get(b"1") is None
    cache.put(b"large", answer("x" * 300_000))
    assert cache.get(b"large") is None
