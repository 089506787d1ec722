"""Redis, for what several gateways share: short timeouts, and after a failure a moment without any attempt.

So a Redis that is down or slow costs one request in a while a fraction of a second, and the others nothing. What is
done instead is the caller's to say: a cache has a miss, a limit its own policy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tokentrail.gateway.libraries import library

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT = 0.25
"""Seconds that connecting and a command may take."""
PAUSE = 1.0
"""Seconds after a failure in which Redis is not asked."""
_MOST_CONNECTIONS = 64


class RedisDown(Exception):
    """Redis did not answer, or has failed so recently that it was not asked."""


class RedisLink:
    """A deployment's Redis, on the event loop that first asks. Connections are made when they are needed."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT,
        pause: float = PAUSE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises a `TokentrailError` where the library is not installed."""
        redis = library("redis.asyncio")
        errors = library("redis.exceptions")
        # RedisError: what it answers (such as that it is loading, or full); OSError: no connection.
        self._failures = (errors.RedisError, OSError, asyncio.TimeoutError)
        pool = redis.BlockingConnectionPool.from_url(
            url,
            socket_connect_timeout=timeout,
            socket_timeout=timeout,
            max_connections=_MOST_CONNECTIONS,
            # Who finds all connections busy waits for one, as long as `ask` lets it.
            timeout=None,
            # Trying again is for later requests.
            retry=library("redis.asyncio.retry").Retry(library("redis.backoff").NoBackoff(), 0),
        )
        self.client: Any = redis.Redis.from_pool(pool)
        self._timeout = timeout
        self._pause = pause
        self._clock = clock
        self._asleep_until = 0.0
        self._down = False

    async def ask(self, command: Callable[[Any], Awaitable[T]]) -> T:
        """What `command`, given the client, answers. Raises `RedisDown`."""
        now = self._clock()
        if now < self._asleep_until:
            raise RedisDown
        if self._down:
            # This one tries for all.
            self._asleep_until = now + self._pause
        try:
            # Name resolution and waiting for a free connection have no timeout of their own.
            answer = await asyncio.wait_for(command(self.client), 2 * self._timeout)
        except self._failures as error:
            if not self._down:
                log.warning(
                    "Redis does not answer (%s); asked again every %g s", type(error).__name__, self._pause
                )
            self._down = True
            self._asleep_until = self._clock() + self._pause
            raise RedisDown from error
        if self._down:
            log.info("Redis answers again")
            self._down, self._asleep_until = False, 0.0
        return answer

    async def aclose(self) -> None:
        await self.client.aclose()
