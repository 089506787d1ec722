"""Answers from memory: the same bytes, streamed or not, to who asked the same, and to nobody else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from scripted_server import MODEL, TEXT, MakeServer, ScriptedServer

from redis_server import RedisServer, free_port
from tokentrail.answer import AnswerRequest, Chunk, Identity, LineEnds, TextPrompt, Usage, collect
from tokentrail.gateway.caching import Kept, MemoryStore, RedisStore, ResponseCache, key_of, reusable
from tokentrail.gateway.config import CacheSettings, ConfigError, parse
from tokentrail.gateway.redis import RedisLink
from tokentrail.journey import JourneyStore
from tokentrail.observability import Metrics
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


def kept(text: str = "known", *, reusable: bool = True) -> Kept:
    return Kept(
        reusable=reusable,
        seed=1,
        fingerprint="fp",
        prompt_token_ids=[[1]],
        sampling=SamplingParams(),
        usage=Usage(1, 1),
        num_choices=1,
        chunks=[Chunk(0, text, finish_reason="stop")],
        headers={},
    )


def test_only_what_is_sure_to_be_the_same_is_used_again() -> None:
    assert not reusable(request())
    assert reusable(request(temperature=0.0))
    assert reusable(request(seed=1))
    left = request(temperature=0.0)
    left.unset = ["temperature"]
    assert not reusable(left)
    assert key_of(request(temperature=0.0)) == key_of(request(temperature=0.0))
    other = request(seed=1)
    other.identity = Identity(tenant="other")
    different = [request(seed=1), request(seed=2), request("y", seed=1), other]
    assert len({key_of(one) for one in different} | {key_of(request(seed=1), "weights")}) == 5
    cut = request(seed=1)
    cut.lines = LineEnds(indent=4)
    assert reusable(cut)
    assert key_of(cut) != key_of(request(seed=1))
    cut.lines = LineEnds(seconds=1.0)
    assert not reusable(cut)


async def test_answers_leave_by_age_and_by_size() -> None:
    now = 0.0
    store = MemoryStore(2**20, clock=lambda: now)
    store.put(b"1", b"one", 10)
    assert await store.get(b"1") == b"one"
    now = 10.0
    assert await store.get(b"1") is None
    assert store.size == 0
    for number in range(12):
        store.put(b"%d" % number, b"x" * 200_000, 10)
        await store.get(b"0")
    assert store.size <= 2**20
    assert await store.get(b"0") is not None
    assert await store.get(b"1") is None
    store.put(b"large", b"x" * 300_000, 10)
    assert await store.get(b"large") is None


async def test_what_is_kept_stands_in_when_nobody_answers() -> None:
    now = 1000.0
    settings = CacheSettings(lifetime_s=10, outage_s=100)
    store = MemoryStore(2**20, clock=lambda: now)
    cache = ResponseCache(settings, store, JourneyStore(), Metrics(), clock=lambda: now)
    asked = request()
    assert await cache.stale(asked) is None  # it never came by the cache
    asked.handling.kept_as = b"k"
    cache.put(b"k", kept(reusable=False))
    assert await cache.fresh(asked, b"k") is None
    assert not asked.handling.degraded
    now += 60
    answer = await cache.stale(asked)
    assert answer is not None
    assert (await collect(answer))[0].text == "known"
    assert (answer.headers["x-tokentrail-served-by"], answer.headers["age"]) == ("cache", "60")
    assert (asked.handling.target, asked.handling.degraded) == ("cache", True)
    assert [stage.name for stage in asked.handling.stages] == ["looked up"]
    now += 40
    assert await cache.stale(asked) is None


async def test_gateways_share_answers_in_redis(shared_redis: RedisServer) -> None:
    links = [RedisLink(shared_redis.url) for _ in range(2)]
    stores = [RedisStore(link, 1000) for link in links]
    caches = [ResponseCache(CacheSettings(), store, JourneyStore(), Metrics()) for store in stores]
    caches[0].put(b"shared", kept())
    caches[0].put(b"large", kept("x" * 2000))
    await stores[0].aclose()
    answer = await caches[1].fresh(request(seed=1), b"shared")
    assert answer is not None
    assert (await collect(answer))[0].text == "known"
    assert await caches[1].fresh(request(seed=1), b"large") is None
    assert await caches[1].fresh(request(seed=1), b"unknown") is None
    stores[0].put(b"damaged", b"\x93no answer", 10)
    await stores[0].aclose()
    assert await caches[1].fresh(request(seed=1), b"damaged") is None
    for link in links:
        await link.aclose()


async def test_without_redis_nothing_is_known() -> None:
    link = RedisLink(f"redis://127.0.0.1:{free_port()}")
    store = RedisStore(link, 1000)
    store.put(b"k", b"v", 1)
    await store.aclose()
    assert await store.get(b"k") is None
    await link.aclose()


def test_a_server_keeps_answers_in_redis(
    make_server: MakeServer, tmp_path: Path, shared_redis: RedisServer
) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(f"redis: {shared_redis.url}\ncache: {{store: redis, lifetime_s: 60}}", encoding="utf-8")
    first, second = (make_server(deployment=str(file)) for _ in range(2))
    body = {"temperature": 0, "prompt": "of two gateways"}
    assert first.complete(**body).json()["choices"] == first.complete(**body).json()["choices"]
    first.call(first.state.gateway.aclose())  # type: ignore[union-attr]
    assert second.complete(**body).headers["x-tokentrail-served-by"] == "cache"
    assert len(second.engine.requests) == 0


def test_redis_must_be_named() -> None:
    with pytest.raises(ConfigError, match="no `redis:`"):
        parse("cache: {store: redis}")
