"""Redis, up, down and back again: who asks is not held up."""

from __future__ import annotations

import pytest

from redis_server import RedisServer, free_port
from tokentrail.gateway.config import ConfigError, parse
from tokentrail.gateway.redis import RedisDown, RedisLink


async def test_what_fails_is_not_asked_for_a_moment() -> None:
    now = 0.0
    link = RedisLink(f"redis://127.0.0.1:{free_port()}", clock=lambda: now)
    asked = 0

    async def ping(client: object) -> object:
        nonlocal asked
        asked += 1
        return await client.ping()  # type: ignore[attr-defined]

    for _ in range(3):
        with pytest.raises(RedisDown):
            await link.ask(ping)
    assert asked == 1
    now = 1.5
    with pytest.raises(RedisDown):
        await link.ask(ping)
    assert asked == 2
    await link.aclose()


async def test_it_comes_back() -> None:
    server = RedisServer()
    now = 0.0
    link = RedisLink(server.url, clock=lambda: now)
    assert await link.ask(lambda client: client.set("a", "1"))
    server.kill()
    with pytest.raises(RedisDown):
        await link.ask(lambda client: client.get("a"))
    server.start()
    now = 2.0
    assert await link.ask(lambda client: client.get("a")) is None
    server.kill()
    await link.aclose()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://x", "must begin with redis://"),
        ("redis://", "names no host"),
        ("redis://h:port", "not a URL"),
    ],
)
def test_addresses_are_checked_without_telling_them(url: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"deploy.yaml:1: redis: .*{what}") as error:
        parse(f"redis: {url}")
    assert parse("redis: redis://u:p@h:1/2").redis == "redis://u:p@h:1/2"
    assert url.removeprefix("redis://") == "" or f"'{url}'" not in str(error.value)
