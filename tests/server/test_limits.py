"""Limits and quotas over HTTP: who is refused and how it is told, what is given back, and that sums are exact."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from scripted_server import MODEL, MakeServer, ScriptedServer

from redis_server import RedisServer, free_port
from tokentrail.gateway import gateway
from tokentrail.gateway.redis import RedisLink
from tokentrail.protocol import TokentrailError

ALICE, BOB, CAROL = "sk-alice-0123456789", "sk-bob-0123456789ab", "sk-carol-0123456789"
KEYS = f"""
keys:
  stored: false
  listed:
    - {{name: alice, tenant: acme, key: {ALICE}}}
    - {{name: bob, tenant: acme, key: {BOB}}}
    - {{name: carol, tenant: umbrella, key: {CAROL}, limits: {{requests_per_minute: null}}}}
"""

MakeLimited = Callable[..., ScriptedServer]


@pytest.fixture
def limited(make_server: MakeServer, tmp_path: Path) -> MakeLimited:
    """limited(limits, engine={…}): a server with these limits and three keys."""

    def make(limits: str, *, more: str = "", **options: Any) -> ScriptedServer:
        path = tmp_path / f"deploy{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(f"{KEYS}\nlimits: {limits}\n{more}\n", encoding="utf-8")
        return make_server(deployment=str(path), **options)

    return make


def ask(server: ScriptedServer, key: str, **body: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 5, **body}
    return server.post("/v1/completions", body, authorization=f"Bearer {key}")


def used(server: ScriptedServer, key: str) -> int:
    """Tokens of the last minute, as a request with one token of its own finds them."""
    headers = ask(server, key, max_tokens=1).headers
    return int(headers["x-ratelimit-limit-tokens"]) - int(headers["x-ratelimit-remaining-tokens"])


def test_how_much_is_used_can_be_looked_up(limited: MakeLimited) -> None:
    server = limited(
        "{each_key: {requests_per_minute: 9, concurrent_requests: 2}, each_tenant: {money_per_month: 5}}",
        more="prices: {currency: EUR, models: {'*': {input: 1000000, output: 0}}}",
    )
    answer = ask(server, ALICE)
    cost = answer.json()["usage"]["prompt_tokens"]

    def limits(key: str) -> dict[tuple[str, str], tuple[float, float]]:
        told = server.get("/v1/limits", headers={"authorization": f"Bearer {key}"}).json()["data"]
        for one in told:
            assert (one["resets_at"] is not None) is one["name"].endswith("month")
        return {(one["of"], one["name"]): (one["used"], one["limit"]) for one in told}

    assert limits(ALICE) == {
        ("key", "requests_per_minute"): (1, 9),
        ("key", "concurrent_requests"): (0, 2),
        ("tenant", "money_per_month"): (cost, 5),
    }
    # Looking costs nothing, and another key of the tenant sees what is the tenant's.
    assert limits(BOB) == {
        ("key", "requests_per_minute"): (0, 9),
        ("key", "concurrent_requests"): (0, 2),
        ("tenant", "money_per_month"): (cost, 5),
    }
    assert ("key", "requests_per_minute") not in limits(CAROL)


def test_requests_of_a_key_and_of_its_tenant(limited: MakeLimited) -> None:
    server = limited("{each_key: {requests_per_minute: 2}, each_tenant: {requests_per_minute: 3}}")
    first = ask(server, ALICE)
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"].startswith(("1m", "60", "59"))
    assert "x-ratelimit-limit-tokens" not in first.headers
    assert ask(server, ALICE).status_code == 200
    for _ in range(2):  # the second is known to be in vain
        refused = ask(server, ALICE)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 61
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        error = refused.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("requests", "rate_limit_exceeded", None)
        assert error["message"].startswith(
            "Rate limit reached: this key may use 2 requests per minute. Used 2,"
        )
    # The tenant has one left, and tells it where that is less than the key has.
    last = ask(server, BOB)
    assert (last.status_code, last.headers["x-ratelimit-remaining-requests"]) == (200, "0")
    assert "this key's tenant may use 3 requests" in ask(server, BOB).json()["error"]["message"]
    # Another tenant has its own, and a key may have other limits, or none.
    assert [ask(server, CAROL).status_code for _ in range(3)] == [200] * 3
    assert "this key's tenant" in ask(server, CAROL).json()["error"]["message"]
    assert server.metric('tokentrail_limited_requests_total{limit="requests_per_minute",of="key"}') == 2


def test_every_dialect_counts_and_is_refused_in_its_own_words(limited: MakeLimited) -> None:
    server = limited("{each_key: {requests_per_minute: 1}}")
    assert ask(server, ALICE).status_code == 200
    message: Any = [{"role": "user", "content": "Hi"}]
    for path, body, shape in (
        (
            "/v1/chat/completions",
            {"messages": message},
            lambda r: r["error"]["code"] == "rate_limit_exceeded",
        ),
        ("/v1/responses", {"input": "Hi"}, lambda r: r["error"]["code"] == "rate_limit_exceeded"),
        ("/v1/embeddings", {"input": "Hi"}, lambda r: r["error"]["code"] == "rate_limit_exceeded"),
        (
            "/v1/messages",
            {"messages": message, "max_tokens": 5},
            lambda r: r["error"]["type"] == "rate_limit_error",
        ),
        ("/api/chat", {"messages": message}, lambda r: r["error"].startswith("Rate limit reached")),
    ):
        refused = server.post(path, {"model": MODEL, **body}, authorization=f"Bearer {ALICE}")
        assert refused.status_code == 429, path
        assert shape(refused.json()), refused.text
        assert int(refused.headers["retry-after"]) >= 1
    embedded = server.post("/v1/embeddings", {"model": MODEL, "input": "Hi"}, authorization=f"Bearer {BOB}")
    assert embedded.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError, match="requests per minute"):
        server.client(BOB).completions.create(model=MODEL, prompt="Hi", max_tokens=5)


def test_moderations_count_as_requests(limited: MakeLimited, tmp_path: Path) -> None:
    filters = "filters: [{name: rude, words: [damn], action: flag}]\nledger: {}"
    server = limited("{each_key: {requests_per_minute: 2, tokens_per_day: 100}}", more=filters)
    headers = {"authorization": f"Bearer {ALICE}"}
    for left in ("1", "0"):
        asked = server.post("/v1/moderations", {"input": ["damn it", "good day"]}, **headers)
        assert [one["flagged"] for one in asked.json()["results"]] == [True, False]
        assert asked.headers["x-ratelimit-remaining-requests"] == left
    assert server.post("/v1/moderations", {"input": "damn it"}, **headers).status_code == 429
    assert ask(server, ALICE).status_code == 429
    assert server.post("/v1/moderations", {"input": []}, **headers).status_code == 400

    def rows() -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(tmp_path / "tokentrail.db")) as connection:
            return connection.execute(
                "SELECT state, model, key, prompt_tokens + output_tokens FROM usage_requests "
                "WHERE endpoint = '/v1/moderations' ORDER BY id"
            ).fetchall()

    while len(rows()) < 4:
        time.sleep(0.01)
    done, refused = ("done", "tokentrail-filters", "alice", 0), ("refused", "tokentrail-filters", "alice", 0)
    assert rows() == [done, done, refused, ("refused", "", "alice", 0)]


def test_what_is_not_used_is_given_back(limited: MakeLimited) -> None:
    server = limited("{each_key: {tokens_per_minute: 1000}}")
    prompt = ask(server, ALICE, max_tokens=1).json()["usage"]["prompt_tokens"]
    before = used(server, ALICE)
    asked = ask(server, ALICE, max_tokens=400)
    completion = asked.json()["usage"]["completion_tokens"]
    assert completion < 100
    assert int(asked.headers["x-ratelimit-remaining-tokens"]) == 1000 - before - prompt - 400
    assert used(server, ALICE) == before + 2 * prompt + completion + 1


def test_streams_settle_however_they_end(limited: MakeLimited) -> None:
    tokens: list[int] = []
    server = limited("{each_key: {tokens_per_minute: 5000}}", engine={"script": lambda request: tokens})
    tokens += [server.tokens[0]] * 400
    probe = used(server, ALICE)  # a prompt and a token
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 40, "stream": True}
    whole = server.post("/v1/completions", body, authorization=f"Bearer {ALICE}")
    assert whole.headers["x-ratelimit-limit-tokens"] == "5000"
    assert used(server, ALICE) == 3 * probe - 1 + 40
    # The client leaves.
    server.engine.delay = 0.01
    headers = {"authorization": f"Bearer {ALICE}"}
    long = {**body, "max_tokens": 400}
    with server.http.stream("POST", server.url + "/v1/completions", json=long, headers=headers) as cut:
        next(cut.iter_raw())
    server.engine.delay = 0
    server.call(idle(server))
    spent = used(server, ALICE) - (3 * probe - 1 + 40) - probe
    assert probe - 1 < spent < probe - 1 + 400
    # The engine fails before anything comes of it.
    before = used(server, ALICE)
    server.engine.error = TokentrailError("broken")
    assert ask(server, ALICE, max_tokens=300).status_code == 500
    server.engine.error = None
    assert used(server, ALICE) == before + probe


async def idle(server: ScriptedServer) -> None:
    while server.state.active:
        await asyncio.sleep(0.001)


def test_a_request_larger_than_its_limit_is_told_so(limited: MakeLimited) -> None:
    server = limited("{each_key: {tokens_per_minute: 100}, each_tenant: {tokens_per_day: 50}}")
    refused = ask(server, ALICE, max_tokens=200)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("request_exceeds_limit", "max_tokens")
    assert "this key may use 100 tokens per minute in all, so that waiting does not help" in error["message"]
    assert "Lower max_tokens" in error["message"]
    # Where it leaves that open, what there is must do.
    open_ended = server.post(
        "/v1/chat/completions",
        {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]},
        authorization=f"Bearer {CAROL}",
    )
    assert open_ended.status_code == 200
    # 50 tokens a day are soon used.
    told = [ask(server, CAROL, max_tokens=20) for _ in range(4)][-1]
    assert (told.status_code, told.json()["error"]["code"]) == (429, "insufficient_quota")
    assert told.json()["error"]["type"] == "insufficient_quota"
    assert "The next day begins at 20" in told.json()["error"]["message"]
    assert told.headers["x-should-retry"] == "false"
    assert 1 <= int(told.headers["retry-after"]) <= 86400


async def many(servers: list[ScriptedServer], clients: int, each: int, **body: Any) -> list[httpx.Response]:
    """So many clients at once, each of which asks so many times, one after the other."""
    # A connection that has idled for long may be closed just when it is used again.
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:

        async def client(number: int) -> list[httpx.Response]:
            url = servers[number % len(servers)].url + "/v1/completions"
            headers = {"authorization": f"Bearer {ALICE}"}
            asked = {"model": MODEL, "prompt": "Hi", "max_tokens": 30, **body}
            return [await http.post(url, json=asked, headers=headers) for _ in range(each)]

        return [reply for replies in await asyncio.gather(*map(client, range(clients))) for reply in replies]


@pytest.mark.parametrize("where", ["memory", "redis"])
def test_sums_are_exact_under_64_clients(
    where: str, limited: MakeLimited, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gateways where they share Redis. The quota holds for each token, and all of it can be used."""
    # Every answer has 3 of the 30 tokens that it may have.
    engine = {"script": lambda request: [5, 6, 2]}
    more, count = "", 1
    if where == "redis":
        redis: RedisServer = request.getfixturevalue("shared_redis")
        more, count = f"redis: {redis.url}", 2
        flush(redis)
        # On a machine that is busy with other tests Redis may take its time.
        monkeypatch.setattr(gateway, "RedisLink", functools.partial(RedisLink, timeout=60))
    limits = (
        f"{{store: {where}, each_key: {{tokens_per_day: 600}}, each_tenant: {{concurrent_requests: 12}}}}"
    )
    servers = [limited(limits, more=more, engine=engine) for _ in range(count)]
    running = most = 0
    # How many are in the engines at once; all run in threads of this process.
    for server in servers:
        submit = server.engine.submit

        def watched(asked: Any, sink: Any, submit: Any = submit) -> Any:
            nonlocal running, most
            running = sum(len(one.engine.running) for one in servers)
            most = max(most, running + 1)
            return submit(asked, sink)

        server.engine.submit = watched  # type: ignore[method-assign]
    replies = asyncio.run(many(servers, 64, 3))
    good = [reply for reply in replies if reply.status_code == 200]
    assert {reply.status_code for reply in replies} <= {200, 429}
    tokens = sum(reply.json()["usage"]["total_tokens"] for reply in good)
    assert tokens <= 600
    assert most <= 12
    # What was left over when reservations filled it comes free: one after the other use it up.
    size = good[0].json()["usage"]["total_tokens"]
    for _ in range(600 // size):
        reply = ask(servers[-1], ALICE, max_tokens=3)
        if reply.status_code != 200:
            assert reply.json()["error"]["code"] == "insufficient_quota"
            break
        tokens += reply.json()["usage"]["total_tokens"]
    assert 600 - size < tokens <= 600


@pytest.mark.parametrize("where", ["memory", "redis"])
def test_quotas_outlive_the_counts(
    where: str, limited: MakeLimited, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that is started again, or whose Redis has lost its memory, goes on from what the ledger has."""
    more = "ledger: {}\nprices: {models: {'*': {input: 1000, output: 1000}}}"
    if where == "redis":
        redis: RedisServer = request.getfixturevalue("shared_redis")
        more += f"\nredis: {redis.url}"
        flush(redis)
        monkeypatch.setattr(gateway, "RedisLink", functools.partial(RedisLink, timeout=60))
    limits = f"{{store: {where}, each_key: {{tokens_per_day: 1000}}, each_tenant: {{money_per_month: 2.5}}}}"
    server = limited(limits, more=more)
    used = {key: ask(server, key).json()["usage"]["total_tokens"] for key in (ALICE, BOB)}
    if where == "redis":
        flush(redis)
    again = limited(limits, more=more)
    # One of each key, and those of both of its tenant; the prompt and a token are reserved.
    size = used[ALICE] - 5 + 1
    for key, before in ((ALICE, 0), (BOB, size)):
        headers = ask(again, key, max_tokens=1).headers
        assert headers["x-ratelimit-remaining-tokens-per-day"] == str(1000 - used[key] - size)
        left = 2500 - used[ALICE] - used[BOB] - before - size
        assert float(headers["x-ratelimit-remaining-money-per-month"]) == left / 1000
        assert headers["x-ratelimit-limit-money-per-month"] == "2.5"
    # Another tenant has nothing to do with it.
    other = ask(again, CAROL, max_tokens=1).headers
    assert other["x-ratelimit-remaining-tokens-per-day"] == str(1000 - size)


def test_quotas_nobody_can_look_up(limited: MakeLimited, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokentrail.gateway.database import DatabaseFailure
    from tokentrail.gateway.ledger.ledger import Ledger

    async def away(*_: object) -> tuple[int, int]:
        raise DatabaseFailure("The database is away.")

    server = limited("{each_key: {tokens_per_day: 1000}}", more="ledger: {}")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "billed", away)
        refused = ask(server, ALICE)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "limits_unavailable")
    assert ask(server, ALICE).status_code == 200


def flush(redis: RedisServer) -> None:
    import redis as library

    with library.Redis.from_url(redis.url) as client:
        client.flushdb()


@pytest.mark.parametrize("policy", ["local", "open", "closed"])
def test_when_redis_is_down(policy: str, limited: MakeLimited, caplog: pytest.LogCaptureFixture) -> None:
    limits = f"{{store: redis, on_redis_failure: {policy}, each_key: {{requests_per_minute: 2}}}}"
    server = limited(limits, more=f"redis: redis://127.0.0.1:{free_port()}/0")
    replies = [ask(server, ALICE) for _ in range(4)]
    expected = {"local": [200, 200, 429, 429], "open": [200] * 4, "closed": [503] * 4}[policy]
    assert [reply.status_code for reply in replies] == expected
    assert sum("Redis does not answer" in record.getMessage() for record in caplog.records) == 1
    if policy == "closed":
        assert replies[0].json()["error"]["code"] == "limits_unavailable"


def test_redis_comes_back(limited: MakeLimited, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    redis = RedisServer()
    try:
        server = limited("{store: redis, each_key: {requests_per_minute: 3}}", more=f"redis: {redis.url}")
        assert ask(server, ALICE).headers["x-ratelimit-remaining-requests"] == "2"
        redis.kill()
        assert ask(server, ALICE).headers["x-ratelimit-remaining-requests"] == "2"  # of this process
        redis.start()
        # Ends that it was not told of are told as soon as it answers.
        server.call(answering(caplog))
        assert ask(server, ALICE).headers["x-ratelimit-remaining-requests"] == "2"  # it has lost its memory
    finally:
        redis.kill()


async def answering(caplog: pytest.LogCaptureFixture) -> None:
    while not any("Redis answers again" in record.getMessage() for record in caplog.records):
        await asyncio.sleep(0.01)


def test_limits_are_replaced_while_the_server_runs(limited: MakeLimited) -> None:
    server = limited("{each_key: {requests_per_minute: 1}}")
    assert [ask(server, ALICE).status_code for _ in range(2)] == [200, 429]
    running = server.state.gateway
    assert running is not None
    running.path.write_text(f"{KEYS}\nlimits: {{each_key: {{requests_per_minute: 3}}}}\n", encoding="utf-8")
    running.reload()
    assert [ask(server, ALICE).status_code for _ in range(3)] == [200, 200, 429]
