"""Trails: what is recorded, joined, kept, forgotten and shown to whom; and what recording costs."""

from __future__ import annotations

import itertools
import random
import time

import msgspec
import pytest
from journey_samples import Clock, begin, delta, drafted, run_one, share

from tokentrail.journey import JourneyStore, JourneyView
from tokentrail.protocol import Delta, TokenAlternatives


def shown(store: JourneyStore, id: str, tenant: str = "") -> JourneyView:
    """The view as a client gets it: through JSON and back, which also checks it against its types."""
    found = store.view(id, tenant)
    assert found is not None
    return msgspec.json.decode(msgspec.json.encode(found), type=JourneyView)


def test_every_step_and_token_is_there() -> None:
    store = JourneyStore()
    run_one(store, prompt=40, tokens=50)
    view = shown(store, "a")
    (sequence,) = view.sequences
    assert [step.step for step in sequence.steps] == list(range(1, 52))
    assert [(step.kind, step.tokens, step.position, step.cached_tokens) for step in sequence.steps[:3]] == [
        ("prefill", 16, 8, 8),
        ("prefill", 16, 24, 0),
        ("decode", 1, 40, 0),
    ]
    assert [step.position for step in sequence.steps[2:]] == list(range(40, 89))
    assert [step.blocks for step in sequence.steps] == [
        -(-(step.position + step.tokens) // 16) for step in sequence.steps
    ]
    assert [token.step for token in sequence.tokens] == list(range(2, 52))
    assert [token.logprob for token in sequence.tokens] == [-(k + 1) / 8 for k in range(50)]
    assert sequence.cached_tokens == 8
    assert sequence.steps[0].seconds == pytest.approx(0.010, abs=1e-5)
    assert sequence.steps[0].forward_seconds == pytest.approx(0.008, abs=1e-5)
    assert view.stages.decode == pytest.approx(0.49, abs=1e-4)
    assert view.stages.prefill == pytest.approx(0.02, abs=1e-4)
    assert (view.status, view.outcome, view.completion_tokens, view.prompt_tokens) == (
        "finished",
        "stop",
        50,
        40,
    )
    # The pretend engine's clock runs ahead of the real one, so the end is not last here.
    names = [event.event for event in view.events if event.event != "finished"]
    assert names == ["received", "templated", "queued", "scheduled", "first_token"]
    assert [event.at for event in view.events] == sorted(event.at for event in view.events)
    assert [(e.tokens, e.reason) for e in view.events if e.event == "finished"] == [(50, "stop")]


def test_text_ids_and_alternatives_are_kept_only_when_asked() -> None:
    for keep in (False, True):
        store = JourneyStore(keep_text=keep)
        journey = begin(store)
        journey.token_text = lambda token: f"<{token}>"
        sequence = journey.add_sequence("a-0", prompt_tokens=1, prompt="the secret prompt", prompt_ids=[3])
        top = [TokenAlternatives(token_ids=[7, 9], logprobs=[-0.25, -2.0])]
        store.on_step(Clock().record(share("a-0", 1, 0)), [delta("a-0", 7, top=top)])
        journey.sequence_done(sequence, "length", 1, "the secret answer")
        journey.end("length")
        body = msgspec.json.encode(store.view("a"))
        token = shown(store, "a").sequences[0].tokens[0]
        if keep:
            assert (token.id, token.text) == (7, "<7>")
            assert token.top is not None
            assert [(entry.id, entry.text, entry.logprob) for entry in token.top] == [
                (7, "<7>", -0.25),
                (9, "<9>", -2.0),
            ]
            pieces = shown(store, "a").sequences[0].prompt_pieces
            assert pieces is not None
            assert [(piece.id, piece.text) for piece in pieces] == [(3, "<3>")]
            assert b"secret prompt" in body
            assert b"secret answer" in body
        else:
            assert (token.id, token.text, token.top) == (None, None, None)
            assert shown(store, "a").sequences[0].prompt_pieces is None
            assert b"secret" not in body


def test_company_is_who_shared_steps_and_of_the_same_tenant() -> None:
    """Random batches, on two engines whose steps mix: compared with who was in each step."""
    rng = random.Random(5)
    store = JourneyStore()
    names = ["a", "b", "c", "x"]
    for name in names:
        begin(store, name, tenant="two" if name == "x" else "one").add_sequence(f"{name}-0", prompt_tokens=1)
    clocks = [Clock(replica=0), Clock(replica=1)]
    at = dict.fromkeys(names, 0)
    together: list[list[str]] = []
    for _ in range(300):
        who = [name for name in names if rng.random() < 0.7]
        for name in who:
            at[name] += 1
        shares = [share(f"{name}-0", 1, at[name]) for name in who]
        store.on_step(rng.choice(clocks).record(*shares), [])
        together.append(who)
    (sequence,) = shown(store, "a", "one").sequences
    own = [who for who in together if "a" in who]
    assert len(sequence.steps) == len(own)
    assert [one.journey for one in sequence.company] == ["b", "c"]
    for one in sequence.company:
        stretches = [range(first, last + 1) for first, last in one.steps]
        assert {k for stretch in stretches for k in stretch} == {
            k for k in range(len(own)) if one.journey in own[k]
        }
        assert all(a[-1] + 1 < b[0] for a, b in itertools.pairwise(stretches))


def test_a_journey_is_seen_by_its_own_tenant_only() -> None:
    store = JourneyStore()
    run_one(store, "a", tenant="one", request_id="mine")
    run_one(store, "b", tenant="two", request_id="mine")
    begin(store, "c", tenant="two")
    assert store.view("a", "one") is not None
    assert store.view("a", "two") is None
    assert store.view("a") is None
    assert shown(store, "mine", "one").id == "a"
    assert shown(store, "mine", "two").id == "b"
    assert [journey.id for journey in store.list("one").data] == ["a"]
    assert [journey.id for journey in store.list("two").data] == ["c", "b"]
    assert [journey.status for journey in store.list("two").data] == ["live", "finished"]
    assert store.list("").data == []


def test_the_last_finished_are_kept_and_live_ones_always() -> None:
    store = JourneyStore(3)
    live = [begin(store, f"live-{k}") for k in range(5)]
    for k in range(10):
        run_one(store, f"done-{k}", tokens=2)
    assert [journey.id for journey in store.list(limit=100).data] == [
        "live-4",
        "live-3",
        "live-2",
        "live-1",
        "live-0",
        "done-9",
        "done-8",
        "done-7",
    ]
    assert store.list(limit=2).has_more
    assert store.view("done-6") is None
    for journey in live:
        journey.end("abort")
    assert [journey.id for journey in store.list(limit=100).data] == ["live-4", "live-3", "live-2"]
    assert store.num_live == 0
    assert len(store._by_request_id) == 3


def test_preemption_and_restart_show_as_recomputed_steps() -> None:
    store = JourneyStore()
    journey = begin(store)
    journey.add_sequence("a-0", prompt_tokens=20)
    clock = Clock()
    store.on_step(clock.record(share("a-0", 20, 0)), [delta("a-0", 1, cached_tokens=0)])
    store.on_step(clock.record(share("a-0", 1, 20)), [delta("a-0", 2)])
    store.on_step(clock.record(preempted=["a-0"]), [])
    store.on_step(clock.record(share("a-0", 6, 16, cached=16)), [delta("a-0", 3)])
    store.on_resume(["a-0", "gone-0"])
    clock = Clock(clock.now, life=1, replica=1)
    store.on_step(clock.record(share("a-0", 23, 0)), [delta("a-0", 4, cached_tokens=0)])
    store.on_step(clock.record(share("a-0", 1, 23)), [delta("a-0", 5)])
    journey.end("abort")
    view = shown(store, "a")
    (sequence,) = view.sequences
    assert [(step.kind, step.engine, step.replica, step.step) for step in sequence.steps] == [
        ("prefill", 0, 0, 1),
        ("decode", 0, 0, 2),
        ("recompute", 0, 0, 4),
        ("recompute", 1, 1, 1),
        ("decode", 1, 1, 2),
    ]
    assert (view.preemptions, view.resumptions) == (1, 1)
    assert {"preempted", "resumed"} <= {event.event for event in view.events}
    assert len(sequence.tokens) == 5


def test_steps_tell_what_was_drafted_and_what_was_right() -> None:
    store = JourneyStore()
    journey = begin(store)
    journey.add_sequence("a-0", prompt_tokens=20)
    clock = Clock()
    store.on_step(clock.record(share("a-0", 20, 0)), [delta("a-0", 1, cached_tokens=0)])
    three = Delta("a-0", [2, 3, 4], [-0.25, -0.375, -0.5])
    record = clock.record(drafted("a-0", 20, 5, 2))
    record.drafting = 0.0004
    store.on_step(record, [three])
    store.on_step(clock.record(drafted("a-0", 23, 4, 0)), [delta("a-0", 5)])
    store.on_step(clock.record(share("a-0", 1, 24)), [delta("a-0", 6)])
    store.on_step(clock.record(share("a-0", 1, 25)), [delta("a-0", 7)])
    journey.end("stop")
    view = shown(store, "a")
    (sequence,) = view.sequences
    assert [
        (step.kind, step.tokens, step.position, step.drafted_tokens, step.accepted_tokens)
        for step in sequence.steps
    ] == [
        ("prefill", 20, 0, 0, 0),
        ("decode", 6, 20, 5, 2),
        ("decode", 5, 23, 4, 0),
        ("decode", 1, 24, 0, 0),
        ("decode", 1, 25, 0, 0),
    ]
    assert sequence.steps[1].drafting_seconds == 0.0004
    assert [token.step for token in sequence.tokens] == [1, 2, 2, 2, 3, 4, 5]
    assert (view.completion_tokens, view.drafted_tokens, view.accepted_tokens) == (7, 9, 2)


def test_tokens_cut_off_by_a_stop_string_and_later_steps_do_not_count() -> None:
    store = JourneyStore(keep_text=True)
    journey = begin(store)
    sequence = journey.add_sequence("a-0", prompt_tokens=4)
    clock = Clock()
    store.on_step(
        clock.record(share("a-0", 4, 0)), [Delta(id="a-0", token_ids=[5, 6, 7], logprobs=[-1, -2, -3])]
    )
    journey.sequence_done(sequence, "stop", 2, "text")
    store.on_step(clock.record(share("a-0", 1, 7)), [delta("a-0", 8)])
    journey.end("stop")
    assert [token.id for token in shown(store, "a").sequences[0].tokens] == [5, 6]
    assert len(shown(store, "a").sequences[0].steps) == 1
    assert store._watched == {}


def test_steps_that_no_journey_needs_are_freed() -> None:
    store = JourneyStore(2)
    clock = Clock()
    for k in range(3000):
        journey = begin(store, f"{k}")
        journey.add_sequence(f"{k}-0", prompt_tokens=1)
        for position in range(5):
            store.on_step(clock.record(share(f"{k}-0", 1, position)), [delta(f"{k}-0", 1)])
        journey.end("length")
    assert len(store._steps) < 5000
    assert len(shown(store, "2999").sequences[0].steps) == 5


def test_recording_a_batch_of_32_costs_far_less_than_a_percent_of_a_step() -> None:
    """Under 1 % of a step at batch 32 is promised. The demo model's step takes more than 10 ms on two cores,
    so 100 µs is the promise; the best of several rounds is taken, as the machine may be busy."""
    store = JourneyStore()
    ids = [f"chatcmpl-{k}-0" for k in range(32)]
    for id in ids:
        begin(store, id).add_sequence(id, prompt_tokens=64)
    clock = Clock()
    rounds = []
    position = 64
    store.on_step(clock.record(*[share(id, 64, 0) for id in ids]), [])
    for _ in range(20):
        steps = []
        for _ in range(50):
            steps.append(
                (
                    clock.record(*[share(id, 1, position) for id in ids]),
                    [delta(id, random.randrange(9)) for id in ids],
                )
            )
            position += 1
        start = time.perf_counter()
        for record, deltas in steps:
            store.on_step(record, deltas)
        rounds.append((time.perf_counter() - start) / len(steps))
    assert min(rounds) < 100e-6, f"{min(rounds) * 1e6:.0f} µs a step"
    print(f"journey: {min(rounds) * 1e6:.1f} µs a step at batch 32")
