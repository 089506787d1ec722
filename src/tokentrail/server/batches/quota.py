"""How much of the disk a tenant's files may take, those included that are just arriving."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tokentrail.server.batches.bodies import LineError
from tokentrail.server.errors import HTTPError

QUOTA_USED_UP = LineError(
    "files_quota_exceeded",
    "The files of this key have taken all the room they may, so this request was not executed. Delete some of them.",
)


class Quota:
    """`limit`: bytes of one tenant's files and of results that are in none yet; `used`: those that the tenant has."""

    def __init__(self, limit: int, used: Callable[[str], Awaitable[int]]) -> None:
        self.limit = limit
        self._used = used
        self._arriving: Counter[str] = Counter()

    async def used_up(self, tenant: str) -> bool:
        return await self._used(tenant) >= self.limit

    @asynccontextmanager
    async def room(self, tenant: str, wanted: int) -> AsyncIterator[int]:
        """How many of the `wanted` bytes there is room for, which nobody else gets meanwhile; 413 if for none."""
        used = await self._used(tenant)
        room = min(wanted, self.limit - used - self._arriving[tenant])
        if room < 1:
            raise self.exceeded(used)
        self._arriving[tenant] += room
        try:
            yield room
        finally:
            self._arriving[tenant] -= room
            if not self._arriving[tenant]:
                del self._arriving[tenant]

    def exceeded(self, used: int) -> HTTPError:
        return HTTPError(
            413,
            f"The files of this key may have {self.limit} bytes together (--files-quota), and {used} are in use. "
            "Delete some with DELETE /v1/files/{id}.",
            type="invalid_request_error",
            code=QUOTA_USED_UP.code,
            param="file",
        )
