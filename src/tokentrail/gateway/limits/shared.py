"""Counts in Redis, which all gateways that share it see; and what is done while it does not answer."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from tokentrail.gateway.limits.memory import MemoryStore
from tokentrail.gateway.limits.script import SCRIPT
from tokentrail.gateway.limits.store import Amounts, Meter, Reading, StoreDown, Verdict
from tokentrail.gateway.redis import PAUSE, RedisDown, RedisLink

log = logging.getLogger(__name__)

_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
_MOST_UNSETTLED = 100_000
"""Ends that wait for a Redis that is down; the leases see to the others."""
_AT_ONCE = 256
"""Calls sent together, in one round trip."""

_pack = msgspec.msgpack.Encoder().encode


class RedisStore:
    """See `store.Store`. A reservation is one round trip and so is a settlement, shared with those of others that come
    while one is under way.
    """

    def __init__(
        self,
        link: RedisLink,
        on_failure: Literal["local", "open", "closed"] = "local",
        *,
        prefix: str = "tokentrail:limits",
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock`: for tests; Redis has one of its own, which all gateways share."""
        self._link = link
        self._on_failure = on_failure
        self._prefix = prefix
        self._clock = clock
        self._local = MemoryStore() if clock is None else MemoryStore(clock)
        self._elsewhere: set[str] = set()
        """Requests that are counted in this process, since Redis did not answer when they came."""
        self._calls: list[tuple[list[Any], asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None
        self._unsettled: dict[tuple[str, str], list[tuple[str, Amounts]]] = {}
        """By what is to be done (settle, lapse) and group."""
        self._num_unsettled = 0
        self._settling: asyncio.Task[None] | None = None

    async def reserve(
        self,
        group: str,
        id: str,
        meters: Sequence[Meter],
        amounts: Amounts,
        lease: float,
        *,
        surely: bool = False,
    ) -> Verdict:
        try:
            reply = await self._call("reserve", group, [id, lease, meters, amounts, surely])
        except RedisDown:
            return await self._without(group, id, meters, amounts, surely)
        if reply[0] == 2:
            return Verdict(False, [], unknown=True)
        readings = [Reading(used, reset, wait, bool(refused)) for used, reset, wait, refused, _ in reply[1:]]
        return Verdict(reply[0] == 1, readings)

    async def _without(
        self, group: str, id: str, meters: Sequence[Meter], amounts: Amounts, surely: bool
    ) -> Verdict:
        if self._on_failure == "closed":
            # It may have been counted all the same.
            self._enqueue("settle", group, id, (1, 0, 0))
            raise StoreDown
        if self._on_failure == "open":
            return Verdict(True, [])
        verdict = await self._local.reserve(group, id, meters, amounts, float("inf"), surely=surely)
        if verdict.granted:
            self._elsewhere.add(id)
        return verdict

    async def read(self, group: str, meters: Sequence[Meter]) -> list[Reading]:
        try:
            reply = await self._call("read", group, meters)
        except RedisDown:
            if self._on_failure == "local":
                return await self._local.read(group, meters)
            raise StoreDown from None
        return [Reading(used, reset) for used, reset in reply]

    async def begin(self, group: str, used: Sequence[tuple[str, int, float]]) -> None:
        try:
            await self._call("begin", group, used)
        except RedisDown:
            if self._on_failure == "closed":
                raise StoreDown from None
            await self._local.begin(group, used)

    def settle(self, group: str, id: str, amounts: Amounts) -> None:
        if id in self._elsewhere:
            self._elsewhere.discard(id)
            self._local.settle(group, id, amounts)
        # Also of those that are counted here: Redis may have counted them and then not said so in time.
        self._enqueue("settle", group, id, amounts)

    def lapse(self, group: str, id: str, amounts: Amounts) -> None:
        self._enqueue("lapse", group, id, amounts)

    def _enqueue(self, op: str, group: str, id: str, amounts: Amounts) -> None:
        if self._num_unsettled >= _MOST_UNSETTLED:
            return
        self._unsettled.setdefault((op, group), []).append((id, amounts))
        self._num_unsettled += 1
        if self._settling is None or self._settling.done():
            self._settling = asyncio.ensure_future(self._settle())

    async def _settle(self) -> None:
        while self._unsettled:
            try:
                await self._settle_all()
            except RedisDown:
                await asyncio.sleep(PAUSE)

    async def _settle_all(self) -> None:
        """Raises `RedisDown`, with what was not settled kept."""
        while self._unsettled:
            (op, group), items = next(iter(self._unsettled.items()))
            part = items[:_AT_ONCE]
            await self._call(op, group, part)
            del items[: len(part)]
            self._num_unsettled -= len(part)
            if not items:
                del self._unsettled[op, group]

    async def renew(self, group: str, used: Sequence[tuple[str, Amounts]], lease: float) -> None:
        try:
            await self._call(
                "renew", group, [lease, [item for item in used if item[0] not in self._elsewhere]]
            )
        except RedisDown:
            raise StoreDown from None

    async def aclose(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait({self._settling})
        try:
            await self._settle_all()
        except RedisDown:
            log.warning(
                "%d ended requests could not be settled in Redis; their leases will", self._num_unsettled
            )
        if self._sending is not None:
            await asyncio.wait({self._sending})

    async def _call(self, op: str, group: str, arguments: Any) -> Any:
        """What the script answers. Raises `RedisDown`."""
        key = f"{self._prefix}:{{{quote(group, safe='')}}}"
        now = "" if self._clock is None else repr(self._clock())
        answer = asyncio.get_running_loop().create_future()
        self._calls.append(([key, op, now, _pack(arguments)], answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())
        return await answer

    async def _send(self) -> None:
        """Those that wait, together; while they are under way, others gather."""
        while self._calls:
            calls, self._calls = self._calls[:_AT_ONCE], self._calls[_AT_ONCE:]
            try:
                replies = await self._link.ask(_batch([call for call, _ in calls]))
            except BaseException as error:
                for _, answer in calls:
                    if not answer.done():
                        answer.set_exception(RedisDown() if isinstance(error, RedisDown) else error)
                        answer.exception()  # heard, also where nobody waits any more
                if not isinstance(error, RedisDown):
                    raise
                continue
            for (_, answer), reply in zip(calls, replies, strict=True):
                if not answer.done():
                    answer.set_result(reply)


def _batch(calls: list[list[Any]]) -> Callable[[Any], Awaitable[list[Any]]]:
    """A command that answers what the script answers to each of `calls`."""
    return lambda client: _run(client, calls)


async def _run(client: Any, calls: list[list[Any]]) -> list[Any]:
    """One round trip; two where Redis does not know the script yet."""
    replies = await _pipe(client, calls)
    # A Redis that has just started has no script; calls that met that have done nothing.
    unknown = [at for at, reply in enumerate(replies) if type(reply).__name__ == "NoScriptError"]
    if unknown:
        await client.script_load(SCRIPT)
        again = await _pipe(client, [calls[at] for at in unknown])
        for at, reply in zip(unknown, again, strict=True):
            replies[at] = reply
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


async def _pipe(client: Any, calls: list[list[Any]]) -> list[Any]:
    pipe = client.pipeline(transaction=False)
    for call in calls:
        pipe.evalsha(_SHA, 1, *call)
    replies: list[Any] = await pipe.execute(raise_on_error=False)
    return replies
