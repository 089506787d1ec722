"""Two gateways that share Redis and PostgreSQL: real processes, 64 clients, kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import redis as redis_library
from sqlalchemy import text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "answer"))

from scripted_upstream import Asked, Line, ScriptedUpstream, piece

from redis_server import RedisServer
from tokentrail.gateway.database import Database

PROMPT, ANSWER = 5, 3
"""Tokens of each question, and of its answer."""
PRICE = PROMPT * 0.001 + ANSWER * 0.002
CLIENTS = 64
LIMITS = {
    "requests": "{requests_per_minute: 50}",
    "tokens": "{tokens_per_minute: 500}",
    "slots": "{concurrent_requests: 5}",
    "day": "{tokens_per_day: 800}",
    "cost": "{money_per_month: 0.5}",
    "killed": "{concurrent_requests: 4, tokens_per_day: 100000, money_per_day: 1000}",
}
"""By key; each is a tenant of its own."""


_PATIENT = """
import functools, sys
from tokentrail.cli.app import run
from tokentrail.gateway import gateway
gateway.RedisLink = functools.partial(gateway.RedisLink, timeout=60)
run(sys.argv[1:])
"""
"""`tokentrail`, but on a machine that is busy with other tests Redis may take its time."""


class Upstream:
    """Counts, by key, how many of its requests run."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    async def play(self, asked: Asked, line: Line) -> None:
        name = asked.body["messages"][0]["content"]
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        try:
            await line.begin()
            if name == "killed":
                while not line.gone.is_set():
                    await line.event(piece("word "))
                    await asyncio.sleep(0.01)
                return
            await asyncio.sleep(0.01)
            for word in ("one", " two", " three"):
                await line.event(piece(word))
            usage = {"prompt_tokens": PROMPT, "completion_tokens": ANSWER}
            # Its slot may be free before the last byte is read.
            self.running[name] -= 1
            self.answered[name] += 1
            name = ""
            await line.event({**piece(reason="stop"), "usage": usage})
            await line.end()
        finally:
            self.running[name] -= 1


class Gateways:
    """`tokentrail serve --config`, so many times, with one deployment file."""

    def __init__(self, folder: Path, database: str, redis: RedisServer, upstream: str, count: int) -> None:
        self.file = folder / "deploy.yaml"
        keys = "".join(
            f"    - {{name: {name}, tenant: {name}, key: {secret(name)}, limits: {limits}}}\n"
            for name, limits in LIMITS.items()
        )
        self.file.write_text(
            f"database: {database}\nredis: {redis.url}\n"
            "ledger: {checkpoint_s: 0.05, lease_s: 5}\n"
            "limits: {store: redis, on_redis_failure: closed}\n"
            "prices: {models: {up: {input: 1000, output: 2000}}}\n"
            f"models: [{{name: up, url: '{upstream}', kind: openai, model: their-model}}]\n"
            f"keys:\n  stored: false\n  listed:\n{keys}"
        )
        self.database = Database(database, folder)
        self.redis = redis_library.Redis.from_url(redis.url, decode_responses=True)
        self.redis.flushdb()
        self._log = (folder / "log").open("w+")
        self.processes: list[subprocess.Popen[str]] = []
        self.urls: list[str] = []
        for _ in range(count):
            self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", _PATIENT, "serve", "--config", str(self.file), "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self.processes.append(process)

    async def ready(self) -> None:
        for process in self.processes[len(self.urls) :]:
            assert process.stdout is not None
            banner = await asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
            assert " at http://" in banner, (banner, Path(self._log.name).read_text())
            self.urls.append(banner.split(" at ")[1].strip())

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._log.close()
        self.redis.close()
        self.database.close()

    # --- what is true ---

    def rows(self, key: str) -> list[dict[str, Any]]:
        with self.database.read() as connection:
            found = connection.execute(text("SELECT * FROM usage_requests WHERE key = :key"), {"key": key})
            return [dict(row) for row in found.mappings()]

    def billed(self, key: str) -> tuple[int, int]:
        """Tokens and billionths."""
        rows = self.rows(key)
        return sum(row["prompt_tokens"] + row["output_tokens"] for row in rows), sum(
            row["cost"] for row in rows
        )

    def counted(self, key: str, limit: str) -> int:
        """What Redis has of a limit."""
        (name,) = self.redis.keys(f"tokentrail:limits:{{{key}}}:key:{key}:{limit}*") or [""]
        if not name:
            return 0
        if self.redis.type(name) == "hash":
            return sum(map(int, self.redis.hvals(name)))
        return int(self.redis.get(name) or 0)

    async def settled(self, key: str) -> None:
        """Nothing is reserved any more."""
        while self.redis.exists(f"tokentrail:limits:{{{key}}}:reservations"):
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(
    folder: Path, database: str, redis: RedisServer, count: int
) -> AsyncIterator[tuple[Gateways, Upstream]]:
    counting = Upstream()
    async with ScriptedUpstream(counting.play) as upstream:
        gateways = Gateways(folder, database, redis, f"{upstream.url}/v1", count)
        try:
            await asyncio.wait_for(gateways.ready(), 120)
            yield gateways, counting
        finally:
            gateways.close()


def secret(key: str) -> str:
    return f"sk-{key}-0123456789abcdef"


class Reply(NamedTuple):
    status: int
    headers: httpx.Headers
    body: dict[str, Any]

    @property
    def tokens(self) -> int:
        return int(self.body["usage"]["total_tokens"]) if self.status == 200 else 0


async def ask(http: httpx.AsyncClient, url: str, key: str, most: int = 30) -> Reply:
    body = {"model": "up", "messages": [{"role": "user", "content": key}], "max_tokens": most}
    headers = {"authorization": f"Bearer {secret(key)}"}
    reply = await http.post(f"{url}/chat/completions", json=body, headers=headers)
    return Reply(reply.status_code, reply.headers, reply.json())


def client() -> httpx.AsyncClient:
    # A connection that has idled for long may be closed just when it is used again.
    return httpx.AsyncClient(
        timeout=60, limits=httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=0)
    )


async def many(http: httpx.AsyncClient, gateways: Gateways, key: str, each: int) -> list[Reply]:
    """64 clients over all gateways, each of which asks so many times, one after the other."""

    async def one(number: int) -> list[Reply]:
        url = gateways.urls[number % len(gateways.urls)]
        return [await ask(http, url, key) for _ in range(each)]

    replies = [reply for part in await asyncio.gather(*map(one, range(CLIENTS))) for reply in part]
    assert {reply.status for reply in replies} <= {200, 429}
    return replies


async def test_two_gateways_hold_every_limit_together(
    tmp_path: Path, postgres_url: str, shared_redis: RedisServer
) -> None:
    async with running(tmp_path, postgres_url, shared_redis, 2) as (gateways, upstream), client() as http:
        await check_requests(http, gateways)
        await check_tokens(http, gateways)
        await check_slots(http, gateways, upstream)
        await check_day(http, gateways)
        await check_money(http, gateways)
        for key in LIMITS:
            # What the ledger says is what was answered, once each.
            done = [row for row in gateways.rows(key) if row["state"] == "done"]
            assert len(done) == upstream.answered[key]
            assert gateways.billed(key) == (
                (PROMPT + ANSWER) * len(done),
                round(PRICE * 1e9) * len(done),
            )


async def check_requests(http: httpx.AsyncClient, gateways: Gateways) -> None:
    begun = time.monotonic()
    replies = await many(http, gateways, "requests", 2)
    good = sum(reply.status == 200 for reply in replies)
    assert 50 <= good <= 50 * (1 + (time.monotonic() - begun) // 60)
    refused = next(reply for reply in replies if reply.status == 429)
    error = refused.body["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
    assert "this key may use 50 requests per minute" in error["message"]
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


async def check_tokens(http: httpx.AsyncClient, gateways: Gateways) -> None:
    begun = time.monotonic()
    replies = await many(http, gateways, "tokens", 3)
    got = sum(reply.tokens for reply in replies)
    assert 0 < got <= 500 * (1 + (time.monotonic() - begun) // 60)
    await gateways.settled("tokens")
    assert gateways.counted("tokens", "tokens_per_minute") == got == gateways.billed("tokens")[0]


async def check_slots(http: httpx.AsyncClient, gateways: Gateways, upstream: Upstream) -> None:
    """Whoever tries again gets one of the five."""

    async def one(number: int) -> None:
        while (reply := await ask(http, gateways.urls[number % 2], "slots")).status != 200:
            assert "this key may have 5 requests at once" in reply.body["error"]["message"]
            await asyncio.sleep(0.02)

    await asyncio.gather(*map(one, range(CLIENTS)))
    assert upstream.answered["slots"] == CLIENTS
    assert upstream.most["slots"] == 5
    await gateways.settled("slots")
    assert gateways.counted("slots", "concurrent_requests") == 0


async def use_up(http: httpx.AsyncClient, gateways: Gateways, key: str) -> Reply:
    """What was left over when reservations filled a quota is there for those who ask one after the other. The refusal
    that ends it.
    """
    for number in range(200):
        reply = await ask(http, gateways.urls[number % 2], key, most=ANSWER)
        if reply.status == 429:
            return reply
        await gateways.settled(key)
    raise AssertionError("it never ends")


async def check_day(http: httpx.AsyncClient, gateways: Gateways) -> None:
    replies = await many(http, gateways, "day", 2)
    assert 0 < sum(reply.tokens for reply in replies) <= 800
    await gateways.settled("day")
    assert gateways.counted("day", "tokens_per_day") == gateways.billed("day")[0]
    refused = await use_up(http, gateways, "day")
    error = refused.body["error"]
    assert gateways.counted("day", "tokens_per_day") == gateways.billed("day")[0] == 800
    assert (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")
    assert "this key may use 800 tokens a day; 800 are used" in error["message"]
    assert refused.headers["x-ratelimit-limit-tokens-per-day"] == "800"
    assert refused.headers["x-ratelimit-remaining-tokens-per-day"] == "0"


async def check_money(http: httpx.AsyncClient, gateways: Gateways) -> None:
    first = await ask(http, gateways.urls[0], "cost")
    assert first.headers["x-ratelimit-limit-money-per-month"] == "0.5"
    assert (
        first.headers["x-ratelimit-remaining-money-per-month"] == "0.435"
    )  # 5 tokens asked, 30 to be answered
    replies = await many(http, gateways, "cost", 2)
    assert sum(reply.status == 200 for reply in [first, *replies]) * PRICE <= 0.5
    await gateways.settled("cost")
    assert gateways.counted("cost", "money_per_month") == gateways.billed("cost")[1]
    refused = await use_up(http, gateways, "cost")
    # 45 answers at 0.011 are 0.495, and one more would be too much.
    assert gateways.counted("cost", "money_per_month") == gateways.billed("cost")[1] == 495_000_000
    error = refused.body["error"]
    assert error["code"] == "insufficient_quota"
    assert (
        "this key may use 0.5 of costs a month; 0.495 are used or reserved, and this request may need 0.011"
        in error["message"]
    )
    assert re.search(r"The next month begins at 20\d\d-\d\d-01T00:00:00", error["message"])
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["x-ratelimit-remaining-money-per-month"] == "0.005"
    headers = {"authorization": f"Bearer {secret('cost')}"}
    (line,) = (await http.get(f"{gateways.urls[1]}/usage?by=key", headers=headers)).json()["data"]
    assert (line["cost"], line["currency"]) == ("0.495", "USD")


async def test_a_killed_gateway_leaves_nothing_to_the_other_one(
    tmp_path: Path, postgres_url: str, shared_redis: RedisServer
) -> None:
    async with running(tmp_path, postgres_url, shared_redis, 2) as (gateways, _), client() as http:
        await kill_one(http, gateways, lambda: None)


async def test_a_killed_gateway_finds_nothing_blocked_when_it_is_back(
    tmp_path: Path, shared_redis: RedisServer
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    async with running(tmp_path, url, shared_redis, 1) as (gateways, _), client() as http:
        await kill_one(http, gateways, gateways.start)


async def kill_one(http: httpx.AsyncClient, gateways: Gateways, again: Callable[[], None]) -> None:
    """The first gateway dies with all of a key's slots and much of its quota reserved."""
    came = [0] * 4
    all_came = asyncio.Event()

    async def stream(number: int) -> None:
        body = {"model": "up", "messages": [{"role": "user", "content": "killed"}], "max_tokens": 10_000}
        headers = {"authorization": f"Bearer {secret('killed')}"}
        url = f"{gateways.urls[0]}/chat/completions"
        with contextlib.suppress(httpx.TransportError):
            async with http.stream("POST", url, json={**body, "stream": True}, headers=headers) as reply:
                assert reply.status_code == 200
                async for line in reply.aiter_lines():
                    came[number] += line.count('"content":"word')
                    if min(came) >= 5:
                        all_came.set()

    streams = [asyncio.ensure_future(stream(number)) for number in range(4)]
    await all_came.wait()
    while not all(row["output_tokens"] for row in gateways.rows("killed")):
        await asyncio.sleep(0.01)
    full = await ask(http, gateways.urls[0], "killed")
    assert "this key may have 4 requests at once" in full.body["error"]["message"]
    assert gateways.counted("killed", "tokens_per_day") > 40_000
    gateways.kill(0)
    await asyncio.gather(*streams)
    again()
    await asyncio.wait_for(gateways.ready(), 120)
    while gateways.counted("killed", "concurrent_requests"):
        await asyncio.sleep(0.01)
    rows = [row for row in gateways.rows("killed") if row["streamed"]]
    assert [row["state"] for row in rows] == ["interrupted"] * 4
    for row, words in zip(sorted(row["output_tokens"] for row in rows), sorted(came), strict=True):
        assert 0 < row <= words
    # Those that were cut off are counted as they are billed; and the key may ask again.
    tokens, cost = gateways.billed("killed")
    assert gateways.counted("killed", "tokens_per_day") == tokens
    assert gateways.counted("killed", "money_per_day") == cost > 0
    http_reply = await ask(http, gateways.urls[-1], "slots")
    assert http_reply.status == 200
