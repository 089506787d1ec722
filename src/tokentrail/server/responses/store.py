"""Responses that are kept, in memory: the newest of each tenant, bounded by their number and their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

MOST_BYTES = 64 * 1024 * 1024
"""Of one tenant, as JSON."""


class Kept(msgspec.Struct):
    """A response."""

    previous: str | None
    """The id of the response it went on from."""
    response: bytes
    """As it was sent, JSON."""
    items: bytes
    """What was asked with it, a JSON list of items."""
    ids: list[str]
    """Of all its items."""

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items)

    def all_items(self) -> list[dict[str, Any]]:
        """What was asked and what was answered."""
        return [*msgspec.json.decode(self.items), *msgspec.json.decode(self.response)["output"]]


class ResponseStore:
    """By tenant and id. A response that is used counts as new, and those that it went on from as newer: so the store
    gives up the ends of old conversations before their beginnings.
    """

    def __init__(self, count: int, max_bytes: int = MOST_BYTES) -> None:
        """`count`: kept for each tenant; 0: none."""
        self.count = count
        self._max_bytes = max_bytes
        self._shelves: dict[str, _Shelf] = {}

    def keep(
        self,
        tenant: str,
        id: str,
        response: Any,
        output: Sequence[Any],
        items: Sequence[dict[str, Any]],
        previous: str | None,
    ) -> None:
        """`response`: with this `id` and the items `output`; `items`: those that were asked with it."""
        encoded = msgspec.to_builtins(list(output))
        ids = [item["id"] for item in (*items, *encoded)]
        kept = Kept(previous, msgspec.json.encode(response), msgspec.json.encode(items), ids)
        shelf = self._shelves.setdefault(tenant, _Shelf())
        shelf.add(id, kept)
        shelf.trim(self.count, self._max_bytes)

    def get(self, tenant: str, id: str) -> Kept | None:
        shelf = self._shelves.get(tenant)
        return None if shelf is None else shelf.get(id)

    def delete(self, tenant: str, id: str) -> bool:
        """Whether there was one."""
        shelf = self._shelves.get(tenant)
        return shelf is not None and shelf.drop(id)

    def chain(self, tenant: str, id: str) -> list[Kept] | str:
        """The responses up to `id`, the first one first; or the id of the one that is missing."""
        shelf = self._shelves.get(tenant)
        if shelf is None or shelf.get(id) is None:
            return id
        turns = []
        at: str | None = id
        while at is not None:
            kept = shelf.peek(at)
            if kept is None:
                return at
            turns.append(kept)
            at = kept.previous
        return turns[::-1]

    def holders(self, tenant: str, ids: Iterable[str]) -> list[Kept]:
        """Responses that hold these items, sent or received: each once. Ids that are not known have none."""
        shelf = self._shelves.get(tenant)
        if shelf is None:
            return []
        found = {id(kept): kept for one in ids if (kept := shelf.holder(one)) is not None}
        return list(found.values())


class _Shelf:
    """Those of one tenant, the oldest first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0
        self._holders: dict[str, str] = {}
        """Item → response, both by id."""

    def add(self, id: str, kept: Kept) -> None:
        self._kept[id] = kept
        self._bytes += kept.size
        self._holders.update(dict.fromkeys(kept.ids, id))
        self.get(id)

    def peek(self, id: str) -> Kept | None:
        return self._kept.get(id)

    def get(self, id: str) -> Kept | None:
        """The response, which counts as used now."""
        kept = self._kept.get(id)
        at: str | None = id
        while at is not None and at in self._kept:
            self._kept.move_to_end(at)
            at = self._kept[at].previous
        return kept

    def holder(self, id: str) -> Kept | None:
        return self._kept.get(self._holders.get(id, ""))

    def drop(self, id: str) -> bool:
        kept = self._kept.pop(id, None)
        if kept is None:
            return False
        self._bytes -= kept.size
        for item in kept.ids:
            if self._holders.get(item) == id:
                del self._holders[item]
        return True

    def trim(self, count: int, max_bytes: int) -> None:
        while self._kept and (len(self._kept) > count or self._bytes > max_bytes):
            self.drop(next(iter(self._kept)))
