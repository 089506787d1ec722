"""Speculative decoding changes when tokens come, and never which: over the fake model, whose every answer is known."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from engine_fakes import VOCAB, FakeDraft, request
from engine_harness import Harness, RandomLengths
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedules import Arrival, arrivals, engine_settings, play
from tokentrail.engine.batch import Batch, SampledRows
from tokentrail.engine.sequence import Sequence
from tokentrail.engine.speculation import Lengths
from tokentrail.engine.speculation.lengths import StepCost
from tokentrail.engine.speculation.ngram import continuation
from tokentrail.protocol import FinishReason


class Oracle:
    """Knows the answers, and errs where it is told to."""

    pass_seconds = 0.0

    def __init__(self, harness: Harness, errs: float, seed: int) -> None:
        self._harness = harness
        self._errs = errs
        self._random = random.Random(seed)
        self.answers: dict[str, list[int]] = {}

    def started(self, sequence: Sequence) -> None:
        pass

    def draft(self, sequences: list[Sequence], lengths: list[int]) -> None:
        for sequence, length in zip(sequences, lengths, strict=True):
            if sequence.id not in self.answers:
                self.answers[sequence.id] = self._harness.expect(sequence.request).tokens
            done = sequence.num_tokens - sequence.prompt_len
            for token in self.answers[sequence.id][done : done + self._random.randint(0, length)]:
                wrong = self._random.random() < self._errs
                sequence.propose(((token + 1) % VOCAB if wrong else token,))


def speculating(drafter: str, lengths: Lengths | None = None, **config: object) -> Harness:
    harness = Harness(speculative_model=drafter, **config)
    assert harness.core.speculator is not None
    if lengths is not None:
        harness.core.speculator.lengths = lengths
    return harness


# --- random schedules ------------------------------------------------------------------------------------


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    schedule=arrivals(VOCAB),
    shape=engine_settings([1, 2, 4, 16], positions=(24, 320)),
    rows=st.integers(1, 40),
    drafter=st.sampled_from(["oracle", "oracle", "ngram", "fake", "confused"]),
    longest=st.integers(1, 9),
    seed=st.none() | st.integers(0, 2**16),
    errs=st.sampled_from([0.0, 0.2, 0.7]),
)
def test_random_schedules_change_nothing(
    *,
    schedule: list[Arrival],
    shape: dict[str, Any],
    rows: int,
    drafter: str,
    longest: int,
    seed: int | None,
    errs: float,
) -> None:
    harness = speculating(
        "fake" if drafter in ("fake", "confused") else "ngram",
        RandomLengths(longest, seed),
        kv_cache_memory=shape.pop("positions"),
        model=f"fake:?rows={rows}",
        **shape,
    )
    if drafter == "oracle":
        assert harness.core.speculator is not None
        harness.core.speculator.drafter = Oracle(harness, errs, seed or 0)
    elif drafter == "confused":
        assert harness.runner.draft is not None
        harness.runner.draft.confused = lambda position: position % 5 == 0
    played = play(harness.core, schedule, step=harness.step)
    for id, item in played.requests.items():
        assert played.answers[id] == harness.expect(item)
    check_records(harness)


def check_records(harness: Harness) -> None:
    """What the records tell of drafts agrees with the counters and with the tokens that came."""
    drafted = accepted = tokens = 0
    for output in harness.outputs:
        came = {delta.id: len(delta.token_ids) for delta in output.deltas}
        assert sum(share.tokens for share in output.record.sequences) == output.record.num_tokens
        for share in output.record.sequences:
            assert 0 <= share.accepted <= share.drafted < max(share.tokens, 1)
            drafted += share.drafted
            accepted += share.accepted
            if share.drafted:
                assert share.tokens == share.drafted + 1
                assert came[share.id] in (share.accepted, share.accepted + 1)
        tokens += sum(came.values())
    if harness.outputs:
        stats = harness.outputs[-1].stats
        assert (stats.drafted_tokens, stats.accepted_tokens) == (drafted, accepted)
        assert stats.generated_tokens == tokens


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    schedule=arrivals(VOCAB),
    shape=engine_settings([1, 2, 4], positions=(64, 320)),
    longest=st.integers(1, 6),
    seed=st.none() | st.integers(0, 2**16),
)
def test_a_draft_models_memory_is_never_wrong(
    schedule: list[Arrival], shape: dict[str, Any], longest: int, seed: int | None
) -> None:
    """Drafted by the very model that answers, every token is right, unless the draft model's cache was wrong somewhere:
    after prefix hits, preemption, eviction, chunks, steps without drafts, and drafts that were cut off.
    """
    harness = speculating(
        "fake",
        RandomLengths(longest, seed),
        kv_cache_memory=shape.pop("positions"),
        model="fake:?rows=40",
        **shape,
    )
    played = play(harness.core, schedule, step=harness.step)
    for id, item in played.requests.items():
        assert played.answers[id] == harness.expect(item)
    for output in harness.outputs:
        ended = {delta.id for delta in output.deltas if delta.finish is not None}
        for share in output.record.sequences:
            assert share.accepted == share.drafted or share.id in ended


# --- what happens in particular --------------------------------------------------------------------------


def test_a_step_brings_what_was_right_and_one_token_more() -> None:
    harness = speculating("fake", RandomLengths(4))
    item = request("a", [3, 4, 5], max_tokens=12, ignore_eos=True, logprobs=2)
    harness.add(item)
    harness.run()
    assert [len(output.deltas[0].token_ids) for output in harness.outputs] == [1, 5, 5, 1]
    assert harness.answers["a"] == harness.expect(item)
    [share] = harness.outputs[1].record.sequences
    assert (share.tokens, share.position, share.drafted, share.accepted) == (5, 3, 4, 4)
    assert harness.outputs[1].record.drafting > 0


def test_the_last_token_is_never_drafted() -> None:
    """No row is computed for a position that no token of the answer depends on."""
    harness = speculating("fake", RandomLengths(8))
    item = request("a", [3, 4, 5], max_tokens=6, ignore_eos=True)
    harness.add(item)
    harness.run()
    assert [output.record.num_tokens for output in harness.outputs] == [3, 5]
    assert harness.answers["a"] == harness.expect(item)


def test_what_stands_behind_a_stop_token_is_dropped() -> None:
    harness = speculating("fake", RandomLengths(8))
    plain = harness.expect(request("x", [3, 4], max_tokens=10, ignore_eos=True)).tokens
    stop = plain[4]
    item = request("a", [3, 4], max_tokens=10, ignore_eos=True, stop_token_ids=(stop,))
    harness.add(item)
    harness.run()
    assert harness.answers["a"].tokens == plain[: plain.index(stop) + 1]
    assert harness.finishes["a"].stop_token == stop


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 1.2}], ids=str
)
def test_penalties_count_the_drafted_tokens_before(penalty: dict[str, float]) -> None:
    """Only a few tokens can come, so that each draw depends on how often each came before, in this very step too."""
    harness = speculating("fake", RandomLengths(8))
    biases = dict.fromkeys(range(6, 40), 20.0)
    item = request("a", [3, 4, 5], max_tokens=60, ignore_eos=True, logit_bias=biases, **penalty)
    harness.add(item)
    harness.run()
    assert harness.answers["a"] == harness.expect(item)
    plain = harness.expect(request("a", [3, 4, 5], max_tokens=60, ignore_eos=True, logit_bias=biases))
    assert harness.answers["a"].tokens != plain.tokens, "the penalty matters"
    stats = harness.outputs[-1].stats
    assert stats.accepted_tokens == stats.drafted_tokens > 40


def test_rejected_tokens_never_enter_the_prefix_cache() -> None:
    """A prompt that goes on as the wrong drafts did finds only what was right."""
    harness = speculating("fake", RandomLengths(8))
    assert harness.runner.draft is not None
    harness.runner.draft.confused = lambda position: True
    first = request("a", [3, 4, 5], max_tokens=30, ignore_eos=True)
    harness.add(first)
    harness.run()
    right = harness.answers["a"].tokens
    assert harness.outputs[-1].stats.accepted_tokens == 0
    assert harness.outputs[-1].stats.drafted_tokens > 100
    for wrong in range(1, 29):
        text = [*first.prompt, *right[:wrong], (right[wrong] + 1) % VOCAB]
        item = request(f"b{wrong}", text * 2, max_tokens=4, ignore_eos=True)
        harness.add(item)
        harness.run()
        assert harness.answers[item.id] == harness.expect(item)
        assert (harness.first[item.id].cached_tokens or 0) <= len(text) - 1


def test_drafts_preempt_nobody() -> None:
    def preemptions(harness: Harness) -> int:
        for i in range(4):
            harness.add(request(str(i), [i + 2, 5, 9], max_tokens=29, ignore_eos=True))
        harness.run()
        return harness.core.scheduler.num_preemptions

    # Blocks for all: three tokens of prompt and 28 computed ones each.
    assert preemptions(speculating("fake", RandomLengths(8), kv_cache_memory=4 * 32)) == 0
    few = speculating("fake", RandomLengths(8), kv_cache_memory=64)
    assert preemptions(few) > 0
    for i in range(4):
        item = request(str(i), [i + 2, 5, 9], max_tokens=29, ignore_eos=True)
        assert few.answers[str(i)] == few.expect(item)


def test_the_steps_budget_holds_for_drafts_too() -> None:
    harness = speculating("fake", RandomLengths(8), max_num_batched_tokens=12, model="fake:?rows=9")
    for i in range(4):
        harness.add(request(str(i), [i + 2], max_tokens=29, ignore_eos=True))
    harness.run()
    assert max(output.record.num_tokens for output in harness.outputs) <= 12
    rows = [sum(1 + share.drafted for share in output.record.sequences) for output in harness.outputs]
    assert max(rows) == 9


def test_a_draft_model_learns_long_prompts_in_chunks() -> None:
    harness = speculating(
        "fake", RandomLengths(4), max_model_len=700, max_num_batched_tokens=512, kv_cache_memory=2048
    )
    item = request("a", [(7 * i) % VOCAB for i in range(400)], max_tokens=40, ignore_eos=True)
    harness.add(item)
    harness.run()
    drafted = [output.record.sequences[0].drafted for output in harness.outputs]
    assert drafted[:6] == [0, 0, 0, 0, 4, 4], "128 of the prompt's 400 tokens in each step"
    assert harness.answers["a"] == harness.expect(item)
    # Its memory is found again with the prefix.
    again = request("b", item.prompt + harness.answers["a"].tokens[:20], max_tokens=10, ignore_eos=True)
    harness.add(again)
    before = len(harness.outputs)
    harness.run()
    assert harness.outputs[before + 1].record.sequences[0].drafted == 4


def test_a_draft_model_forgets_what_was_written_over() -> None:
    """Each answer takes the whole pool: the third one's blocks were the first one's, and the second one's since."""
    harness = speculating("fake", RandomLengths(4), kv_cache_memory=32)
    prompts = {"a": [(5 * i) % VOCAB for i in range(20)], "b": [9] * 20}
    for id, prompt in (("1", prompts["a"]), ("2", prompts["b"]), ("3", prompts["a"]), ("4", prompts["b"])):
        item = request(id, prompt, max_tokens=13, ignore_eos=True)
        harness.add(item)
        harness.run()
        assert harness.answers[id] == harness.expect(item)
        stats = harness.outputs[-1].stats
        assert stats.accepted_tokens == stats.drafted_tokens > 0


def test_a_draft_model_with_a_shorter_context_stops_drafting_there() -> None:
    harness = speculating("fake", RandomLengths(4))
    assert harness.runner.draft is not None
    harness.runner.draft.max_model_len = 18
    item = request("a", [3] * 10, max_tokens=40, ignore_eos=True)
    harness.add(item)
    harness.run()
    assert harness.answers["a"] == harness.expect(item)
    furthest = max(
        share.position + share.drafted
        for output in harness.outputs
        for share in output.record.sequences
        if share.drafted
    )
    # Position 17 is the last that it can compute; from it, it draws token 18.
    assert furthest == 18


def test_numbers_that_are_none_end_the_sequence_behind_its_good_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = speculating("fake", RandomLengths(8))
    item = request("a", [3, 4, 5], max_tokens=30, ignore_eos=True)
    execute = harness.runner.execute

    def damaged(batch: Batch) -> SampledRows:
        result = execute(batch)
        result.logprobs[np.isin(batch.sampling.position, [9])] = np.nan
        return result

    monkeypatch.setattr(harness.runner, "execute", damaged)
    harness.add(item)
    harness.run()
    assert harness.answers["a"].tokens == harness.expect(item).tokens[:6]
    assert harness.finishes["a"].reason is FinishReason.ERROR
    assert harness.outputs[-1].deltas[0].token_ids == []


# --- prompt lookup ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "length", "found"),
    [
        ([1, 2, 3, 4, 9, 1, 2], 2, [3, 4]),
        ([1, 2, 3, 4, 9, 1, 2], 5, [3, 4, 9, 1, 2]),
        ([1, 2, 3, 4, 9, 1, 2], 7, [3, 4, 9, 1, 2, 3, 4]),  # goes on with itself
        ([1, 2, 5, 1, 2, 6, 1, 2], 1, [6]),  # the latest of equals
        ([0, 1, 2, 5, 1, 2, 6, 0, 1, 2], 1, [5]),  # a longer match before a later one
        ([7, 7, 7], 4, [7, 7, 7, 7]),
        ([1, 2, 3, 9, 3], 4, []),  # one token alone says too little
        ([1, 2, 3], 4, []),
        ([1], 4, []),
    ],
    ids=str,
)
def test_what_followed_before_is_drafted(text: list[int], length: int, found: list[int]) -> None:
    assert continuation(np.array(text, np.int32), length).tolist() == found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 12))
def test_the_longest_match_is_found(text: list[int], length: int) -> None:
    best: tuple[int, int] | None = None
    for end in range(1, len(text)):  # a match ends before `end`
        matched = 0
        while matched < min(8, end) and text[end - 1 - matched] == text[len(text) - 1 - matched]:
            matched += 1
        if matched >= 2 and (best is None or matched >= best[0]):
            best = (matched, end)
    expected: list[int] = []
    if best is not None:
        rest = text[best[1] :]
        expected = [rest[i % len(rest)] for i in range(length)]
    assert continuation(np.array(text, np.int32), length).tolist() == expected


# --- how many tokens -------------------------------------------------------------------------------------


def learnt(lengths: Lengths, base: float, row: float) -> None:
    for step in range(200):
        rows = step % 12 + 1
        lengths.cost.observe(rows, base + row * rows)


def test_the_cost_of_a_row_is_learnt() -> None:
    cost = StepCost()
    for step in range(300):
        rows = 1 + step % 9
        cost.observe(rows, 0.004 + 0.0005 * rows + 0.0002 * (-1) ** step)
    assert cost.row == pytest.approx(0.0005, rel=0.1)
    assert cost.seconds(5) == pytest.approx(0.0065, rel=0.05)
    before = cost.seconds(1)
    cost.observe(1, 5.0)  # the machine was busy
    assert cost.seconds(1) < 1.2 * before


def test_without_other_sizes_a_row_is_taken_for_an_eighth() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.observe(1, 0.008)
    assert cost.row == pytest.approx(0.001)
    assert cost.seconds(1) == pytest.approx(0.008)


def test_good_drafts_grow_and_bad_ones_end() -> None:
    lengths = Lengths(4, longest=10)
    learnt(lengths, base=0.004, row=0.0007)
    for slot in range(2):
        lengths.started(slot)
    first, _ = lengths.choose([0, 1], [10, 10], 2, 0.0)
    assert 1 <= first <= 4
    for _ in range(20):
        lengths.verified(0, 5, 5)
        lengths.verified(1, 5, 0)
    assert lengths.choose([0, 1], [10, 10], 2, 0.0) == [10, 0]
    assert lengths.choose([0, 1], [3, 10], 2, 0.0) == [3, 0], "never more than there is room for"
    tried = [lengths.choose([1], [10], 1, 0.0)[0] for _ in range(64)]
    assert sum(map(bool, tried)) > 0, "it is tried again"
    lengths.verified(1, 1, 0)
    assert lengths.choose([1], [10], 1, 0.0) == [0], "and given up again"


def test_a_full_batch_is_not_speculated_for() -> None:
    lengths = Lengths(64, longest=8)
    learnt(lengths, base=0.004, row=0.0008)
    for slot in range(64):
        lengths.started(slot)
    slots = list(range(64))
    chosen = {
        size: sum(lengths.choose(slots[:size], [8] * size, size, 0.0)) / size for size in (1, 4, 16, 64)
    }
    assert chosen[1] >= chosen[4] >= chosen[16] >= chosen[64] == 0
    assert chosen[1] > 1


def test_a_draft_model_that_costs_too_much_is_not_used() -> None:
    lengths = Lengths(1, longest=8)
    learnt(lengths, base=0.004, row=0.0007)
    lengths.started(0)
    for _ in range(30):
        lengths.verified(0, 4, 4)
    assert lengths.choose([0], [8], 1, 0.0047) == [0], "a pass as dear as a step"
    assert lengths.choose([0], [8], 1, 0.0005)[0] > 4


def test_drafting_begins_by_itself_and_pays() -> None:
    """With the real rule and the times of this machine, a draft model that costs next to nothing is used."""
    harness = speculating("fake", num_speculative_tokens=6, model="fake:?delay=0.004")
    assert isinstance(harness.runner.draft, FakeDraft)
    item = request("a", [3, 4, 5], max_tokens=60, ignore_eos=True)
    harness.add(item)
    harness.run()
    assert harness.answers["a"] == harness.expect(item)
    assert harness.outputs[-1].stats.accepted_tokens > 5
    assert len(harness.outputs) < 60
