"""Counts of requests, tokens and money: the store in memory and the one in Redis against one plain model of both."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from typing import Any

import limits
import limits.storage.memory
import limits.strategies
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from redis_server import RedisServer
from tokentrail.gateway.limits.memory import MemoryStore
from tokentrail.gateway.limits.shared import RedisStore
from tokentrail.gateway.limits.store import Amounts, Kind, Meter, Store, Unit
from tokentrail.gateway.redis import RedisLink

LEASE = 30.0
START = 1_800_000_000.25
DAY = 100_000
WINDOWS = {
    "requests": Meter("requests", Kind.WINDOW, Unit.REQUESTS, 6),
    "tokens": Meter("tokens", Kind.WINDOW, Unit.TOKENS, 1000),
    "others": Meter("others", Kind.WINDOW, Unit.TOKENS, 1500),
    "at once": Meter("at once", Kind.COUNT, Unit.REQUESTS, 3),
}
NAMES = [*WINDOWS, "tokens a day", "money a day"]


def meter_of(name: str, now: float) -> Meter:
    if name in WINDOWS:
        return WINDOWS[name]
    day = int((now - START) // DAY)
    unit, limit = (Unit.TOKENS, 2500) if name.startswith("tokens") else (Unit.MONEY, 8 * 10**15)
    return Meter(f"{name}:{day}", Kind.PERIOD, unit, limit, START + (day + 1) * DAY)


class Machine(RuleBasedStateMachine):
    """Requests come, go on, end, end twice, and are forgotten by gateways that die; time goes on. What a store says is
    compared with sums over all that happened.
    """

    store: Store

    @initialize()
    def begin(self) -> None:
        self.now = START
        self.loop = asyncio.new_event_loop()
        self.made = self.loop.run_until_complete(self.make())
        self.group = uuid.uuid4().hex
        self.number = 0
        self.events: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """By meter: (second, amount)."""
        self.open: dict[str, dict[str, Any]] = {}
        self.begun: set[str] = set()
        """Periods of which something is counted."""

    async def make(self) -> Store:
        raise NotImplementedError

    def teardown(self) -> None:
        if hasattr(self, "made"):
            self.loop.run_until_complete(self.made.aclose())
            self.loop.run_until_complete(self.clean())
        if hasattr(self, "loop"):
            self.loop.close()

    async def clean(self) -> None:
        pass

    # --- the model ---

    def used(self, meter: Meter) -> int:
        second = int(self.now)
        if meter.kind is Kind.COUNT:
            return sum(one["live"] for one in self.open.values() if meter in one["charged"])
        return sum(
            amount for at, amount in self.events[meter.name] if meter.kind is Kind.PERIOD or second - at <= 60
        )

    def correct(self, one: dict[str, Any], amounts: Amounts) -> None:
        for meter, (at, amount) in one["charged"].items():
            change = amounts[meter.unit] - amount
            one["charged"][meter] = at, amounts[meter.unit]
            if meter.kind is Kind.COUNT or (meter.kind is Kind.PERIOD and self.now >= meter.until):
                continue
            self.events[meter.name].append((at if change < 0 else int(self.now), change))

    def expire(self) -> None:
        for id, one in sorted(self.open.items(), key=lambda item: item[1]["expires"]):
            if one["expires"] <= self.now:
                if one["live"]:
                    one["live"] = False
                    one["expires"] = self.now + 86400
                    self.correct(one, one["seen"])
                else:
                    del self.open[id]

    # --- what happens ---

    @rule(
        names=st.lists(st.sampled_from(NAMES), unique=True, min_size=1),
        tokens=st.integers(0, 700),
        money=st.integers(0, 2 * 10**15),
        surely=st.booleans(),
    )
    def reserve(self, names: list[str], tokens: int, money: int, surely: bool) -> None:
        self.number += 1
        self.ask(f"r{self.number}", [meter_of(name, self.now) for name in names], (1, tokens, money), surely)

    @rule(names=st.lists(st.sampled_from(NAMES), unique=True))
    def look(self, names: list[str]) -> None:
        meters = [meter_of(name, self.now) for name in names]
        readings = self.loop.run_until_complete(self.made.read(self.group, meters))
        self.expire()
        assert [reading.used for reading in readings] == [self.used(meter) for meter in meters]

    def ask(self, id: str, meters: list[Meter], amounts: Amounts, surely: bool = True) -> None:
        asking = self.made.reserve(self.group, id, meters, amounts, LEASE, surely=surely)
        verdict = self.loop.run_until_complete(asking)
        self.expire()
        known = id in self.open
        periods = {meter.name for meter in meters if meter.kind is Kind.PERIOD}
        assert verdict.unknown is (surely and not known and not periods <= self.begun)
        if verdict.unknown:
            assert not verdict.granted
            return
        if verdict.granted:
            self.begun |= periods
        before = {meter.name: self.used(meter) for meter in meters}
        room = {meter.name: before[meter.name] + amounts[meter.unit] <= meter.limit for meter in meters}
        assert verdict.granted is (known or all(room.values()))
        counted = verdict.granted and not known
        for meter, reading in zip(meters, verdict.readings, strict=True):
            amount = amounts[meter.unit]
            assert reading.used == before[meter.name] + (amount if counted else 0)
            assert reading.refused is (not known and not room[meter.name])
            if reading.refused and meter.kind is Kind.PERIOD:
                assert reading.wait_ms == pytest.approx((meter.until - self.now) * 1000, abs=1)
            if reading.refused and meter.kind is Kind.WINDOW:
                self.check_wait(meter, amount, reading.wait_ms)
        if counted:
            for meter in meters:
                if meter.kind is not Kind.COUNT:
                    self.events[meter.name].append((int(self.now), amounts[meter.unit]))
            self.open[id] = {
                "charged": {meter: (int(self.now), amounts[meter.unit]) for meter in meters},
                "amounts": amounts,
                "seen": (1, 0, 0),
                "live": True,
                "expires": self.now + LEASE,
            }

    def check_wait(self, meter: Meter, amount: int, wait_ms: int) -> None:
        """Then there is room, and not a second earlier."""
        now = self.now
        try:
            self.now = now + wait_ms / 1000
            if amount <= meter.limit:
                assert self.used(meter) + amount <= meter.limit
            self.now -= 1
            assert self.used(meter) + amount > meter.limit
        finally:
            self.now = now

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def reserve_again(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.open)))
        one = self.open[id]
        today = all(meter.kind is not Kind.PERIOD or meter.until > self.now for meter in one["charged"])
        if today and one["live"] and one["expires"] > self.now:
            self.ask(id, list(one["charged"]), one["amounts"])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), more=st.integers(0, 900), money=st.integers(0, 10**15), twice=st.booleans())
    def settle(self, data: st.DataObject, more: int, money: int, twice: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.open)))
        one = self.open.pop(id)
        amounts = (1, one["seen"][1] + more, one["seen"][2] + money)
        for _ in range(1 + twice):
            self.loop.run_until_complete(self.settled(id, amounts))
        one["live"] = False
        self.correct(one, amounts)

    async def settled(self, id: str, amounts: Amounts) -> None:
        self.made.settle(self.group, id, amounts)

    @rule(names=st.lists(st.sampled_from(NAMES[4:]), min_size=1, unique=True), amount=st.integers(0, 2000))
    def begin_periods(self, names: list[str], amount: int) -> None:
        meters = [meter_of(name, self.now) for name in names]
        told = [(meter.name, amount, meter.until) for meter in meters]
        self.loop.run_until_complete(self.made.begin(self.group, told))
        for meter in meters:
            if meter.name not in self.begun:
                self.begun.add(meter.name)
                self.events[meter.name].append((int(self.now), amount))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tokens=st.integers(0, 900), twice=st.booleans())
    def lapse(self, data: st.DataObject, tokens: int, twice: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.open)))
        one = self.open[id]
        amounts = one["seen"] = (1, tokens, 7 * tokens)
        for _ in range(1 + twice):
            self.loop.run_until_complete(self.lapsed(id, amounts))
        one["live"] = False
        one["expires"] = self.now + 86400
        self.correct(one, amounts)

    async def lapsed(self, id: str, amounts: Amounts) -> None:
        self.made.lapse(self.group, id, amounts)

    @rule()
    def settle_a_stranger(self) -> None:
        self.loop.run_until_complete(self.settled("nobody", (1, 5, 5)))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), more=st.integers(0, 300), money=st.integers(0, 10**14))
    def renew(self, data: st.DataObject, more: int, money: int) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.open)), unique=True))
        told: list[tuple[str, Amounts]] = [("nobody", (1, 1, 1))]
        for id in ids:
            one = self.open[id]
            seen = one["seen"] = (1, one["seen"][1] + more, one["seen"][2] + money)
            told.append((id, seen))
            if not one["live"]:
                one["live"] = True
                self.correct(one, seen)
            one["expires"] = self.now + LEASE
        self.loop.run_until_complete(self.made.renew(self.group, told, LEASE))

    @rule(seconds=st.sampled_from([0.125, 0.75, 1.0, 7.5, 29.875, 31.0, 60.0, 90_000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds


OPTIONS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_memory_counts_as_the_model_does() -> None:
    class InMemory(Machine):
        async def make(self) -> Store:
            return MemoryStore(lambda: self.now)

    run_state_machine_as_test(InMemory, settings=OPTIONS)


def test_redis_counts_as_the_model_does(shared_redis: RedisServer) -> None:
    class InRedis(Machine):
        async def make(self) -> Store:
            self.link = RedisLink(shared_redis.url, timeout=20)
            self.shared = RedisStore(self.link, clock=lambda: self.now, prefix="test")
            return self.shared

        async def settled(self, id: str, amounts: Amounts) -> None:
            await super().settled(id, amounts)
            assert self.shared._settling is not None
            await self.shared._settling

        async def lapsed(self, id: str, amounts: Amounts) -> None:
            await super().lapsed(id, amounts)
            assert self.shared._settling is not None
            await self.shared._settling

        async def clean(self) -> None:
            await self.link.aclose()

    run_state_machine_as_test(InRedis, settings=settings(OPTIONS, max_examples=12, stateful_step_count=30))


@settings(max_examples=60, deadline=None)
@given(pauses=st.lists(st.sampled_from([0, 0, 0, 2, 20, 30, 60, 62])), limit=st.integers(1, 4))
def test_requests_pass_when_the_limits_package_lets_them(pauses: list[int], limit: int) -> None:
    """At even seconds: what began 60 seconds ago counts, and of what began 62 seconds ago nobody knows. (What
    happens at 61 depends on when a thread of theirs gets its turn.)
    """
    theirs = limits.strategies.MovingWindowRateLimiter(limits.storage.MemoryStorage())
    item = limits.RateLimitItemPerSecond(limit, 61)
    now = 1_800_000_000.0
    ours = MemoryStore(lambda: now)
    meter = Meter("requests", Kind.WINDOW, Unit.REQUESTS, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits.storage.memory.time, "time", lambda: now)
        for number, pause in enumerate(pauses):
            now += pause
            verdict = asyncio.run(ours.reserve("", str(number), [meter], (1, 0, 0), LEASE))
            assert verdict.granted is theirs.hit(item, "key")
