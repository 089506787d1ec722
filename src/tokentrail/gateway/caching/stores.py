"""Where answers are kept: in this process, or in Redis, which several gateways share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tokentrail.gateway.redis import RedisDown, RedisLink

log = logging.getLogger(__name__)

_PREFIX = b"tokentrail:answer:1:"
"""The number grows when what is kept has another shape."""
_MOST_WRITES = 64
"""Answers on their way to Redis. When it is slower than they come, others are not kept."""


class Store(Protocol):
    """Bytes by keys, for a while. It may lose what it likes, and never fails."""

    async def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, data: bytes, seconds: float) -> None:
        """Keep for `seconds`, from now or very soon on; nobody waits for it."""
        ...

    async def aclose(self) -> None: ...


class MemoryStore:
    """In this process, the least recently asked leaving first."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit`: bytes of what is kept."""
        self._limit = limit
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self.size = 0
        """Bytes."""

    async def get(self, key: bytes) -> bytes | None:
        found = self._kept.get(key)
        if found is None:
            return None
        if found[0] <= self._clock():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return found[1]

    def put(self, key: bytes, data: bytes, seconds: float) -> None:
        if key in self._kept:
            self._drop(key)
        # One answer may not drive all others out.
        if len(data) > self._limit // 4:
            return
        self._kept[key] = self._clock() + seconds, data
        self.size += len(data)
        while self.size > self._limit:
            self._drop(next(iter(self._kept)))

    async def aclose(self) -> None: ...

    def _drop(self, key: bytes) -> None:
        self.size -= len(self._kept.pop(key)[1])


class RedisStore:
    """In Redis, which sees to what all answers together may take (its `maxmemory`)."""

    def __init__(self, link: RedisLink, largest: int) -> None:
        """`largest`: bytes of one answer at most."""
        self._link = link
        self._largest = largest
        self._writing: set[asyncio.Task[None]] = set()

    async def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = await self._link.ask(lambda client: client.get(_PREFIX + key))
        except RedisDown:
            return None
        return found

    def put(self, key: bytes, data: bytes, seconds: float) -> None:
        if len(data) > self._largest or len(self._writing) >= _MOST_WRITES:
            return
        task = asyncio.get_running_loop().create_task(self._write(key, data, seconds))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, key: bytes, data: bytes, seconds: float) -> None:
        milliseconds = max(1, int(seconds * 1000))
        with contextlib.suppress(RedisDown):
            await self._link.ask(lambda client: client.set(_PREFIX + key, data, px=milliseconds))

    async def aclose(self) -> None:
        if self._writing:
            await asyncio.wait(self._writing)
