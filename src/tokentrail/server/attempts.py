"""Wrong keys, counted by the address that they come from: who tries many learns nothing for a while."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from tokentrail.answer import Identity
from tokentrail.protocol import Overloaded, Unauthorized

K = TypeVar("K")
V = TypeVar("V")

BURST = 30
"""Wrong keys that an address may send at once …"""
PER_SECOND = 1.0
"""… and then, in the long run."""
_MOST = 4096
"""Addresses, and pairs of address and key, that are remembered. The longest unseen are forgotten first."""


class TooManyWrongKeys(Overloaded):
    code = "too_many_wrong_keys"


class Attempts:
    """A bucket an address. Once it is empty, nobody at the address learns whether a key is right, but for keys that
    have been let in from there: behind a proxy all clients have one address, and one of them with a wrong key must not
    keep the others out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address → (wrong keys that count, when)."""
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def right(self, address: str, identity: Identity) -> None:
        """A right key came. Raises `TooManyWrongKeys`."""
        place = _network(address)
        pair = (place, identity.key)
        if pair in self._known:
            self._known.move_to_end(pair)
            return
        if (wait := self._wait(place)) > 0:
            raise _too_many(wait)
        _remember(self._known, pair, None)

    def wrong(self, address: str, error: Unauthorized) -> Exception:
        """A wrong key came. Returns the error to tell: `error`, or that there were too many."""
        place = _network(address)
        wait = self._wait(place)
        if wait > 0:
            return _too_many(wait)
        _remember(self._wrong, place, (self._level(place) + 1, self._clock()))
        return error

    def _level(self, place: str) -> float:
        level, when = self._wrong.get(place, (0.0, 0.0))
        return max(0.0, level - (self._clock() - when) * PER_SECOND)

    def _wait(self, place: str) -> float:
        """Seconds until one more may be tried."""
        return max(0.0, self._level(place) + 1 - BURST) / PER_SECOND


def _remember(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MOST:
        kept.popitem(last=False)


@lru_cache(_MOST)
def _network(address: str) -> str:
    """The address; of IPv6 the network, whose addresses one machine has at its choice."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def _too_many(wait: float) -> TooManyWrongKeys:
    return TooManyWrongKeys(
        "Too many wrong API keys came from this address. Try again later, with the right one.",
        retry_after=wait,
    )
