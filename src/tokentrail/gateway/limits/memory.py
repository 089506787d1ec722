"""Counts in this process. `shared.SCRIPT` does the same in Redis, line for line; one test runs on both."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence

from tokentrail.gateway.limits.store import (
    KEPT_SECONDS,
    WINDOW_SECONDS,
    Amounts,
    Kind,
    Meter,
    Reading,
    Verdict,
)

_MOST_REAPED = 100
"""Leases that have run out which one reservation sees to."""


class _Window:
    """Amounts by the second in which they were counted."""

    __slots__ = ("newest", "pruned", "slices", "used")

    def __init__(self) -> None:
        self.slices: dict[int, int] = {}
        self.used = 0
        self.newest = 0
        self.pruned = 0

    def forget(self, now: int) -> None:
        if now == self.pruned:
            return
        self.pruned = now
        for slice in [slice for slice in self.slices if now - slice > WINDOW_SECONDS]:
            self.used -= self.slices.pop(slice)
        if not self.slices:
            self.newest = 0

    def add(self, slice: int, amount: int) -> None:
        self.slices[slice] = self.slices.get(slice, 0) + amount
        self.used += amount
        self.newest = max(self.newest, slice)

    def room_at(self, limit: int, amount: int) -> int:
        """The second in which there will be room for `amount`, if nothing more comes."""
        used = self.used
        at = self.newest
        for at in sorted(self.slices):
            used -= self.slices[at]
            if used + amount <= limit:
                break
        return at + WINDOW_SECONDS + 1


class _Charge:
    """What a reservation counts for on one meter."""

    __slots__ = ("amount", "at", "meter")

    def __init__(self, meter: Meter, amount: int, at: int) -> None:
        self.meter = meter
        self.amount = amount
        self.at = at
        """Of a window: the second in which it was counted."""


class _Reservation:
    __slots__ = ("charges", "expires", "live", "seen")

    def __init__(self, charges: list[_Charge], expires: float) -> None:
        self.charges = charges
        self.expires = expires
        self.seen: Amounts = (1, 0, 0)
        self.live = True


class _Group:
    def __init__(self) -> None:
        self.windows: dict[str, _Window] = {}
        self.counts: dict[str, int] = {}
        self.periods: dict[str, tuple[int, float]] = {}
        """Used, and when it ends."""
        self.reservations: dict[str, _Reservation] = {}
        self.leases: list[tuple[float, str]] = []
        """A heap; entries that a renewal or an end has made untrue are dropped when they come to the front."""


class MemoryStore:
    """See `store.Store`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._groups: dict[str, _Group] = {}

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
        now = self._clock()
        second = int(now)
        state = self._group(group)
        self._reap(state, now)
        known = id in state.reservations
        if (
            surely
            and not known
            and any(one.kind is Kind.PERIOD and one.name not in state.periods for one in meters)
        ):
            return Verdict(False, [], unknown=True)
        granted = True
        readings = []
        for meter in meters:
            amount = amounts[meter.unit]
            reading = self._read(state, meter, now)
            if not known and reading.used + amount > meter.limit:
                granted = False
                reading.refused = True
                if meter.kind is Kind.WINDOW:
                    free = state.windows[meter.name].room_at(meter.limit, amount)
                    reading.wait_ms = math.ceil((free - now) * 1000)
                elif meter.kind is Kind.PERIOD:
                    reading.wait_ms = math.ceil((meter.until - now) * 1000)
            readings.append(reading)
        if not granted or known:
            return Verdict(granted, readings)
        charges = []
        for meter, reading in zip(meters, readings, strict=True):
            amount = amounts[meter.unit]
            self._count(state, meter, amount, now)
            charges.append(_Charge(meter, amount, second))
            reading.used += amount
            if meter.kind is Kind.WINDOW:
                newest = state.windows[meter.name].newest
                reading.reset_ms = math.ceil((newest + WINDOW_SECONDS + 1 - now) * 1000)
        state.reservations[id] = _Reservation(charges, now + lease)
        if lease < math.inf:
            heapq.heappush(state.leases, (now + lease, id))
        return Verdict(True, readings)

    def settle(self, group: str, id: str, amounts: Amounts) -> None:
        state = self._group(group)
        reservation = state.reservations.pop(id, None)
        if reservation is None:
            return
        if reservation.live:
            self._release(state, reservation, -1)
        self._correct(state, reservation, amounts, self._clock())

    async def read(self, group: str, meters: Sequence[Meter]) -> list[Reading]:
        now = self._clock()
        state = self._group(group)
        self._reap(state, now)
        return [self._read(state, meter, now) for meter in meters]

    async def begin(self, group: str, used: Sequence[tuple[str, int, float]]) -> None:
        state = self._group(group)
        now = self._clock()
        for name, amount, until in used:
            self._begin(state, name, amount, until, now)

    def lapse(self, group: str, id: str, amounts: Amounts) -> None:
        state = self._group(group)
        reservation = state.reservations.get(id)
        if reservation is not None:
            self._lapse(state, id, reservation, amounts, self._clock())

    async def renew(self, group: str, used: Sequence[tuple[str, Amounts]], lease: float) -> None:
        now = self._clock()
        state = self._group(group)
        for id, amounts in used:
            reservation = state.reservations.get(id)
            if reservation is None:
                continue
            if not reservation.live:
                reservation.live = True
                self._release(state, reservation, 1)
                self._correct(state, reservation, amounts, now)
            reservation.seen = amounts
            reservation.expires = now + lease
            if lease < math.inf:
                heapq.heappush(state.leases, (now + lease, id))

    async def aclose(self) -> None:
        """Nothing is left to do."""

    def _group(self, name: str) -> _Group:
        state = self._groups.get(name)
        if state is None:
            state = self._groups[name] = _Group()
        return state

    def _read(self, state: _Group, meter: Meter, now: float) -> Reading:
        if meter.kind is Kind.WINDOW:
            window = state.windows.get(meter.name)
            if window is None:
                window = state.windows[meter.name] = _Window()
            window.forget(int(now))
            left = math.ceil((window.newest + WINDOW_SECONDS + 1 - now) * 1000) if window.slices else 0
            return Reading(window.used, left)
        if meter.kind is Kind.COUNT:
            return Reading(state.counts.get(meter.name, 0), 0)
        used, _ = state.periods.get(meter.name, (0, 0.0))
        return Reading(used, math.ceil((meter.until - now) * 1000))

    def _begin(self, state: _Group, name: str, used: int, until: float, now: float) -> None:
        if name in state.periods:
            return
        # A new day: those that nothing can be settled on any more are forgotten.
        for old in [old for old, (_, ended) in state.periods.items() if ended + KEPT_SECONDS < now]:
            del state.periods[old]
        state.periods[name] = used, until

    def _count(self, state: _Group, meter: Meter, amount: int, now: float) -> None:
        if meter.kind is Kind.WINDOW:
            state.windows[meter.name].add(int(now), amount)
        elif meter.kind is Kind.COUNT:
            state.counts[meter.name] = state.counts.get(meter.name, 0) + amount
        else:
            self._begin(state, meter.name, 0, meter.until, now)
            state.periods[meter.name] = state.periods[meter.name][0] + amount, meter.until

    def _release(self, state: _Group, reservation: _Reservation, change: int) -> None:
        """Its place among the requests at once is free (-1), or taken again (1)."""
        for charge in reservation.charges:
            if charge.meter.kind is Kind.COUNT:
                state.counts[charge.meter.name] = state.counts.get(charge.meter.name, 0) + change

    def _correct(self, state: _Group, reservation: _Reservation, amounts: Amounts, now: float) -> None:
        """Count these amounts in the place of those that are counted. What was counted too much is taken back where it
        was counted, if that is not forgotten yet; what was counted too little is counted now.
        """
        second = int(now)
        for charge in reservation.charges:
            meter = charge.meter
            if meter.kind is Kind.COUNT:
                continue
            amount = amounts[meter.unit]
            change, charge.amount = amount - charge.amount, amount
            if meter.kind is Kind.PERIOD:
                if change and now < meter.until:
                    state.periods[meter.name] = state.periods[meter.name][0] + change, meter.until
                continue
            window = state.windows[meter.name]
            window.forget(second)
            if change > 0:
                window.add(second, change)
            elif change < 0 and second - charge.at <= WINDOW_SECONDS:
                window.add(charge.at, change)

    def _reap(self, state: _Group, now: float) -> None:
        """See to leases that have run out."""
        for _ in range(_MOST_REAPED):
            if not state.leases or state.leases[0][0] > now:
                return
            expires, id = heapq.heappop(state.leases)
            reservation = state.reservations.get(id)
            if reservation is None or reservation.expires != expires:
                continue
            if not reservation.live:
                del state.reservations[id]
                continue
            self._lapse(state, id, reservation, reservation.seen, now)

    def _lapse(self, state: _Group, id: str, reservation: _Reservation, amounts: Amounts, now: float) -> None:
        if reservation.live:
            reservation.live = False
            self._release(state, reservation, -1)
        self._correct(state, reservation, amounts, now)
        reservation.seen = amounts
        reservation.expires = now + KEPT_SECONDS
        heapq.heappush(state.leases, (reservation.expires, id))
