"""Targets are ejected, tried and given back their share; second attempts are bounded."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tokentrail.gateway.config import HealthSettings
from tokentrail.gateway.routing.budget import RetryBudget
from tokentrail.gateway.routing.circuit import Circuit, State, Trial
from tokentrail.gateway.routing.latency import FirstTokens


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


HEALTH = HealthSettings(
    failures=3, eject_s=4.0, eject_most_s=20.0, jitter=0.0, trials=1, successes=2, slow_start_s=10.0
)


def circuit(health: HealthSettings = HEALTH) -> tuple[Circuit, Clock]:
    clock = Clock()
    return Circuit(health, clock, random.Random(1).random), clock


def fail(one: Circuit, times: int = 1) -> None:
    for _ in range(times):
        one.begin().failed()


def test_failures_in_a_row_eject_for_growing_times() -> None:
    one, clock = circuit()
    fail(one, 2)
    one.begin().succeeded()
    fail(one, 2)
    assert one.allows
    fail(one)
    for seconds in (4.0, 8.0, 16.0, 20.0, 20.0):
        assert one.state is State.OPEN
        assert not one.allows
        assert one.opens_in == seconds
        clock.now += seconds - 0.01
        assert not one.allows
        clock.now += 0.01
        assert one.state is State.HALF_OPEN
        fail(one)  # the first that tries it
    assert one.ejections == 6


def test_a_trial_at_a_time_and_a_slow_return() -> None:
    one, clock = circuit()
    late = one.begin()
    fail(one, 3)
    clock.now += 4
    assert one.allows
    trial = one.begin()
    assert not one.allows
    late.failed()  # of before: says nothing new
    assert one.state is State.HALF_OPEN
    trial.left()  # its client went away: it may be tried again
    assert one.allows
    assert one.share == 0.1
    for _ in range(2):
        one.begin().succeeded()
    assert one.state is State.CLOSED
    assert one.share == 0.1
    clock.now += 5
    assert one.share == 0.5
    clock.now += 5
    assert one.share == 1.0
    # Soon ejected again, it is for longer; after a good while it begins anew.
    fail(one, 3)
    assert one.opens_in == 4.0
    clock.now += 4
    for _ in range(2):
        one.begin().succeeded()
    fail(one, 3)
    assert one.opens_in == 8.0


def test_a_share_of_failures_ejects_too() -> None:
    one, _ = circuit(HealthSettings(failures=100, failure_share=0.5, share_of=10))
    for k in range(9):
        (one.begin().failed if k % 2 else one.begin().succeeded)()
    assert one.allows
    fail(one)
    assert not one.allows


def test_probes_eject_and_keep_out() -> None:
    one, clock = circuit()
    one.probed(False)
    assert one.allows
    one.probed(False)
    assert one.state is State.OPEN
    clock.now += 100
    assert one.state is State.OPEN  # it does not answer probes
    assert one.opens_in > 0
    one.probed(True)
    assert one.state is State.HALF_OPEN
    one.probed(False)
    assert one.state is State.OPEN


class Life(RuleBasedStateMachine):
    """Whatever happens in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.health = HealthSettings(trials=2, jitter=0.5, share_of=5)
        self.one = Circuit(self.health, self.clock, random.Random(0).random)
        self.running: list[Trial] = []

    @precondition(lambda self: self.one.allows)
    @rule()
    def ask(self) -> None:
        self.running.append(self.one.begin())

    @precondition(lambda self: self.running)
    @rule(data=st.data(), way=st.sampled_from(["succeeded", "failed", "left"]))
    def end(self, data: st.DataObject, way: str) -> None:
        trial = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        getattr(trial, way)()
        getattr(trial, way)()  # again: nothing

    @rule(well=st.booleans())
    def probe(self, well: bool) -> None:
        self.one.probed(well)

    @rule(seconds=st.floats(0, 400))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def is_sane(self) -> None:
        state = self.one.state
        assert 0 < self.one.share <= 1
        assert (self.one.opens_in > 0) == (state is State.OPEN)
        assert self.one.opens_in <= self.health.eject_most_s * 1.5
        if state is State.OPEN:
            assert not self.one.allows
        trying = sum(trial.tries and trial.ejections == self.one.ejections for trial in self.running)
        if state is State.HALF_OPEN:
            assert trying <= self.health.trials
            assert self.one.allows == (trying < self.health.trials)

    def teardown(self) -> None:
        """It always comes back: nothing that was left running can keep it out."""
        for trial in self.running:
            trial.left()
        self.one.probed(True)
        for _ in range(10):
            self.clock.now += 1000
            if self.one.allows:
                self.one.begin().succeeded()
        assert self.one.state is State.CLOSED


Life.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=200))
@settings(max_examples=50, deadline=None)
def test_second_attempts_are_a_share_of_the_requests(events: list[tuple[float, bool]]) -> None:
    clock = Clock()
    budget = RetryBudget(0.2, 2.0, clock)
    requests = taken = 0
    for seconds, failed in events:
        clock.now += seconds
        requests += 1
        budget.request()
        taken += failed and budget.take()
    assert taken <= 30 + 0.2 * requests + 2.0 * (clock.now - 1000.0)
    assert not any(RetryBudget(0.0, 0.0, clock).take() for _ in range(3))


def test_p95_of_the_latest_first_tokens() -> None:
    times = FirstTokens()
    for k in range(19):
        times.add(k)
    assert times.p95 is None
    for k in range(19, 95):
        times.add(k)
    assert times.p95 == 89
    for _ in range(1000):
        times.add(1.0)
    assert times.p95 == 1.0
