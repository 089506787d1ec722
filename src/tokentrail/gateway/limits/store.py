"""What stores of counts do, whether they keep them in this process or in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import msgspec

WINDOW_SECONDS = 60
"""A window forgets by whole seconds: what was counted in second s is forgotten when second s + 61 begins. So it never
lets more than its limit through within any 60 seconds, and is at most a second stricter than that."""
KEPT_SECONDS = 86_400.0
"""After its lease has run out, a request whose gateway was only held up may still be settled for so long."""


class Kind(IntEnum):
    WINDOW = 1
    """Of the last minute."""
    COUNT = 2
    """At this moment."""
    PERIOD = 3
    """Of a calendar day or month, whose name is part of the meter's."""


class Unit(IntEnum):
    """Index of an amount."""

    REQUESTS = 0
    TOKENS = 1
    MONEY = 2
    """Billionths of the currency."""


Amounts = tuple[int, int, int]
"""By `Unit`."""


class Meter(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Something that is counted, and how much of it there may be."""

    name: str
    """Unique in its group."""
    kind: Kind
    unit: Unit
    limit: int
    until: float = 0.0
    """Of a period: the second in which it ends."""


class Reading(msgspec.Struct, array_like=True, gc=False):
    """A meter as a reservation found it."""

    used: int
    """With this request's amount, if it was reserved."""
    reset_ms: int
    """Until nothing of it is used any more, if nothing more comes; of a count, which nobody can know, 0."""
    wait_ms: int = -1
    """If it refused: until it has room for the amount at the latest; -1: it did not refuse, or nobody can know."""
    refused: bool = False


class Verdict(msgspec.Struct, gc=False):
    granted: bool
    readings: list[Reading]
    """Of each meter."""
    unknown: bool = False
    """Nothing was reserved: of a period nobody has told what was used of it before."""


class Store(Protocol):
    """Counts of groups (tenants) that have nothing in common. Each call is one step that no other one can see half of.

    A reservation is known by its request's id, for as long as its lease and `KEPT_SECONDS`: reserving again what is
    reserved changes nothing, settling what is settled neither.

    A lease that runs out corrects the reservation to what `renew` last told (nothing, without one) and frees its
    place among the requests at once.
    """

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
        """Count the amounts on all meters, if each has room; otherwise on none. Raises `StoreDown`.

        `surely`: a period that nothing is counted of is not taken for unused, but for `unknown` until `begin`.
        """
        ...

    async def read(self, group: str, meters: Sequence[Meter]) -> list[Reading]:
        """What is counted now. Raises `StoreDown`."""
        ...

    async def begin(self, group: str, used: Sequence[tuple[str, int, float]]) -> None:
        """Periods (name, what was used of it before, when it ends), unless they have begun. Raises `StoreDown`."""
        ...

    def settle(self, group: str, id: str, amounts: Amounts) -> None:
        """The request has ended, with these amounts. Done soon."""
        ...

    def lapse(self, group: str, id: str, amounts: Amounts) -> None:
        """The request's gateway has died, and it was billed for these amounts: as if its lease had run out with
        them. Done soon; again changes nothing.
        """
        ...

    async def renew(self, group: str, used: Sequence[tuple[str, Amounts]], lease: float) -> None:
        """These requests still run, and have used so much so far. Raises `StoreDown`."""
        ...

    async def aclose(self) -> None:
        """Do what is left to do."""
        ...


class StoreDown(Exception):
    """Nobody can say what has been counted."""
