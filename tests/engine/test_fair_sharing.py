"""Tenants share the engine by weight: a flood of one raises nobody else's waiting. Counted in steps, never timed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from engine_fakes import VOCAB, request
from engine_harness import Harness
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedules import Arrival, arrivals, engine_settings, play
from tokentrail.protocol import GenerateRequest


def of(
    tenant: str, number: int, prompt: int, answer: int, weight: float = 1.0, priority: int = 0
) -> GenerateRequest:
    tokens = [2 + (number * 7 + at) % (VOCAB - 2) for at in range(prompt)]
    item = request(
        f"{tenant}{number}", tokens, max_tokens=answer, ignore_eos=True, priority=priority, salt=tenant
    )
    item.tenant, item.weight = tenant, weight
    return item


def steps_until_first(harness: Harness, id: str) -> int:
    steps = 0
    while id not in harness.first:
        harness.step()
        steps += 1
    return steps


@pytest.mark.parametrize(("prompt", "answer"), [(6, 40), (70, 6)], ids=["many small", "few huge"])
def test_a_quiet_tenant_does_not_wait_for_a_flood(prompt: int, answer: int) -> None:
    """Its first token comes within four steps, however long the flood's queue is, and with all slots taken."""
    for flood in (0, 10, 60):
        harness = Harness(kv_cache_memory=2000, max_num_seqs=4, max_waiting=200)
        for number in range(flood):
            harness.add(of("flood", number, prompt, answer))
        for _ in range(9):
            harness.step()
        for number in range(5):
            item = of("quiet", number, 5, 3)
            harness.add(item)
            assert steps_until_first(harness, item.id) <= 4, flood
            while item.id not in harness.finishes:
                harness.step()
            assert harness.answers[item.id] == harness.expect(item)


@pytest.mark.parametrize(("weights", "kinds"), [
    ((1.0, 1.0), ((6, 10), (70, 10))),
    ((3.0, 1.0), ((6, 20), (6, 20))),
    ((1.0, 2.0), ((40, 4), (4, 40))),
])  # fmt: skip
def test_tenants_that_want_more_than_there_is_get_it_by_weight(
    weights: tuple[float, float], kinds: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    harness = Harness(kv_cache_memory=4000, max_num_seqs=6, max_waiting=5000)
    for number in range(400):
        for tenant, weight, (prompt, answer) in zip("ab", weights, kinds, strict=True):
            harness.add(of(tenant, number, prompt, answer, weight))
    served: Counter[str] = Counter()
    for step in range(700):
        output = harness.step()
        assert output is not None
        for share in output.record.sequences:
            if step >= 100:
                served[share.id[0]] += share.tokens
    assert all(harness.core.scheduler.shares.of(name, 1).waiting for name in "ab")
    assert served["a"] / served["b"] == pytest.approx(weights[0] / weights[1], rel=0.1)


def test_one_tenant_is_served_in_the_order_of_its_requests() -> None:
    harness = Harness(max_num_seqs=3, kv_cache_memory=120)
    order = list(range(30))
    random.Random(1).shuffle(order)
    for number in order:
        item = of("a", number, 5 + number % 7, 9)
        item.arrival = 1000.0 + number
        harness.add(item)
    started: list[str] = []
    for _ in range(10_000):
        if not harness.core.has_work:
            break
        output = harness.step()
        assert output is not None
        started += [one.id for one in output.record.sequences if one.id not in started]
    assert started == [f"a{number}" for number in range(30)]


def test_priority_goes_before_fairness() -> None:
    harness = Harness(max_num_seqs=1)
    for number in range(4):
        harness.add(of("heavy", number, 20, 5))
    harness.step()
    harness.add(of("light", 0, 4, 2))
    harness.add(of("heavy", 9, 4, 2, priority=-1))
    first: list[str] = []
    while harness.core.has_work:
        harness.step()
        first = list(harness.first)
    assert first.index("heavy9") < first.index("light0") < first.index("heavy1")


def test_who_has_had_most_is_preempted_first() -> None:
    harness = Harness(kv_cache_memory=96, max_num_seqs=6)
    # The quiet one came last, and would have gone first.
    for number in range(3):
        harness.add(of("heavy", number, 12, 40))
    for _ in range(12):
        harness.step()
    harness.add(of("quiet", 0, 4, 40))
    preempted: set[str] = set()
    while "quiet0" not in harness.finishes:
        output = harness.step()
        assert output is not None
        preempted.update(output.record.preempted)
    assert preempted
    assert not [id for id in preempted if id.startswith("quiet")]
    harness.run()


def test_a_full_queue_has_room_for_who_has_less_in_it() -> None:
    harness = Harness(max_num_seqs=1, max_waiting=4)
    for number in range(5):
        assert harness.add(of("flood", number, 4, 5)) is None
    harness.step()
    refused = harness.add(of("flood", 5, 4, 5))
    assert refused is None or refused.code == "queue_full"
    while refused is None:
        refused = harness.add(of("flood", 6, 4, 5))
    assert harness.add(of("quiet", 0, 4, 5)) is None
    (out,) = harness.core.refused
    assert (out.id[:5], out.code) == ("flood", "queue_full")
    assert "others have fewer requests" in out.message
    # Nobody is pushed out for a request that would not have been taken, nor for one of its own tenant.
    assert harness.add(of("flood", 8, 4, 5)) is not None
    too_large = of("other", 0, 90, 5)
    too_large.sampling = too_large.sampling.replace(max_tokens=10**6)
    harness.core.refused.clear()
    harness.add(too_large)
    while harness.core.has_work:
        harness.core.refused.clear()
        harness.step()
    assert "quiet0" in harness.finishes
    assert out.id not in harness.first


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    schedule=arrivals(VOCAB),
    shape=engine_settings([1, 2, 4, 16], positions=(24, 320)),
    tenants=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.5, 1.0, 4.0])), min_size=1),
)
def test_tenants_change_no_answer(
    schedule: list[Arrival], shape: dict, tenants: list[tuple[str, float]]
) -> None:
    """Whoever is preempted for whom: each answer is the one that its request gets alone, and all end."""
    harness = Harness(kv_cache_memory=shape.pop("positions"), **shape)
    number = 0
    add = harness.core.add_request

    def add_for_somebody(item: GenerateRequest):
        nonlocal number
        item.tenant, item.weight = tenants[number % len(tenants)]
        number += 1
        return add(item)

    harness.core.add_request = add_for_somebody  # type: ignore[method-assign]
    played = play(harness.core, schedule, step=harness.step)
    for id, item in played.requests.items():
        assert played.answers[id] == harness.expect(item)
    shares = harness.core.scheduler.shares
    assert not shares.active
    assert all(not share.waiting and not share.running for share in shares._shares.values())
