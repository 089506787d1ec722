"""The engine in one process: every answer equals the one computed without an engine, whatever the
schedule.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from engine_fakes import EOS, VOCAB, request
from engine_harness import Harness
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedules import Arrival, arrivals, engine_settings, play
from tokentrail.engine.batch import Batch, SampledRows
from tokentrail.protocol import Finish, FinishReason, GenerateRequest

# --- random schedules ------------------------------------------------------------------------------------


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    schedule=arrivals(VOCAB),
    shape=engine_settings([1, 2, 4, 16], positions=(24, 320)),
    rows=st.integers(1, 24),
)
def test_random_schedules_change_nothing(schedule: list[Arrival], shape: dict, rows: int) -> None:
    harness = Harness(kv_cache_memory=shape.pop("positions"), model=f"fake:?rows={rows}", **shape)
    played = play(harness.core, schedule, step=harness.step)
    for id, item in played.requests.items():
        assert played.answers[id] == harness.expect(item)
    last = harness.outputs[-1].stats if harness.outputs else None
    if last is not None:
        assert (last.running, last.waiting, last.blocks_used) == (0, 0, 0)


def test_a_tiny_pool_preempts_and_changes_nothing() -> None:
    harness = Harness(kv_cache_memory=64, max_num_seqs=6)
    items = [request(str(i), [i + 2, 5, 9], max_tokens=40, ignore_eos=True) for i in range(6)]
    for item in items:
        harness.add(item)
    harness.run()
    assert harness.core.scheduler.num_preemptions > 0
    assert any(output.record.preempted for output in harness.outputs)
    for item in items:
        assert harness.answers[item.id] == harness.expect(item)


def test_an_answer_resumes_from_what_was_already_sent() -> None:
    whole = request(
        "a", [4, 8, 15, 16, 23], temperature=1.0, seed=42, max_tokens=30, ignore_eos=True, logprobs=2
    )
    expected = Harness().expect(whole)
    for sent in (1, 7, 29):
        harness = Harness()
        part = request(
            "a", whole.prompt, temperature=1.0, seed=42, max_tokens=30, ignore_eos=True, logprobs=2
        )
        part.output = expected.tokens[:sent]
        part.resumed = True
        harness.add(part)
        harness.run()
        assert harness.answers["a"].tokens == expected.tokens[sent:]
        assert harness.answers["a"].logprobs == expected.logprobs[sent:]
        assert harness.first["a"].cached_tokens is None


def test_an_answer_that_was_sent_whole_ends_at_once() -> None:
    harness = Harness()
    item = request("a", [4, 8], max_tokens=2)
    item.output = [3, 3]
    assert harness.add(item) is None
    harness.run()
    assert harness.finishes["a"].reason is FinishReason.LENGTH
    assert harness.answers["a"].tokens == []


# --- prefix cache ----------------------------------------------------------------------------------------

PROMPT = list(range(2, 23))  # 21 tokens: five full blocks of 4, and one token


@pytest.mark.parametrize(("length", "cached"), [(21, 20), (20, 16), (4, 0), (5, 4)])
def test_full_blocks_are_taken_from_the_cache(length: int, cached: int) -> None:
    harness = Harness()
    harness.add(request("first", PROMPT))
    harness.run()
    second = request("second", PROMPT[:length])
    harness.add(second)
    harness.run()
    assert harness.first["first"].cached_tokens == 0
    assert harness.first["second"].cached_tokens == cached
    assert harness.answers["second"] == harness.expect(second)
    stats = harness.outputs[-1].stats
    assert (stats.prefix_queries, stats.prefix_hits) == (21 + length, cached)


def test_answers_are_found_again_as_the_beginning_of_the_next_prompt() -> None:
    harness = Harness()
    harness.add(request("first", PROMPT, max_tokens=12, ignore_eos=True))
    harness.run()
    conversation = PROMPT + harness.answers["first"].tokens + [9, 9]
    harness.add(request("second", conversation))
    harness.run()
    assert harness.first["second"].cached_tokens == 32  # 33 tokens; the last one drawn was never computed


def test_salts_and_the_switch_keep_prefixes_apart() -> None:
    harness = Harness()
    for id, salt in (("a", ""), ("b", "tenant-1"), ("c", "tenant-2"), ("d", "tenant-1")):
        harness.add(request(id, PROMPT, salt=salt))
        harness.run()
    assert [harness.first[id].cached_tokens for id in "abcd"] == [0, 0, 0, 20]
    off = Harness(enable_prefix_caching=False)
    for id in "ab":
        off.add(request(id, PROMPT))
        off.run()
    assert off.first["b"].cached_tokens == 0


def test_requests_that_want_prompt_logprobs_compute_their_prompt() -> None:
    harness = Harness(model="fake:?rows=9")
    harness.add(request("first", PROMPT))
    harness.run()
    second = request("second", PROMPT, prompt_logprobs=2, logprobs=1)
    harness.add(second)
    harness.run()
    assert harness.first["second"].cached_tokens == 0
    assert harness.answers["second"] == harness.expect(second)
    assert len(harness.answers["second"].prompt_logprobs or []) == 20


def test_choices_share_their_prompt() -> None:
    harness = Harness()
    items = [request(f"c{i}", PROMPT, group="g", choice=i, temperature=1.0, seed=3) for i in range(4)]
    for item in items:
        harness.add(item)
    harness.run()
    assert [harness.first[item.id].cached_tokens for item in items] == [0, 20, 20, 20]
    assert harness.outputs[-1].stats.prompt_tokens == 21 + 3
    assert len({tuple(harness.answers[item.id].tokens) for item in items}) > 1
    for item in items:
        assert harness.answers[item.id] == harness.expect(item)


def test_a_burst_shares_its_system_prompt_and_nobody_else_waits_for_it() -> None:
    harness = Harness(max_num_batched_tokens=64)
    for id in ("a", "b", "c"):
        harness.add(request(id, [*PROMPT[:20], ord(id) - ord("a")], max_tokens=1))
    harness.add(request("other", [9] * 6, max_tokens=1))
    shares = []
    while harness.core.has_work:
        output = harness.step()
        assert output is not None
        shares.append({share.id: share.tokens for share in output.record.sequences})
    assert shares == [{"a": 21, "other": 6}, {"b": 1, "c": 1}]


def test_the_least_recently_used_blocks_are_evicted() -> None:
    harness = Harness(kv_cache_memory=48)
    other = [60 - token for token in PROMPT]
    for id, prompt in (("a", PROMPT), ("b", other), ("c", PROMPT), ("d", [3] * 21), ("e", other)):
        harness.add(request(id, prompt, max_tokens=1))
        harness.run()
    # `c` refreshed `a`'s blocks; `d` took the oldest, those of `b`.
    assert harness.first["c"].cached_tokens == 20
    assert (harness.first["e"].cached_tokens or 0) < 20


# --- order and fairness ----------------------------------------------------------------------------------


def test_first_come_first_served_within_a_priority() -> None:
    harness = Harness(max_num_seqs=1)
    for id, priority in (("late", 5), ("a", 0), ("b", 0), ("urgent", -1)):
        harness.add(request(id, [3, 4], priority=priority, max_tokens=3, ignore_eos=True))
    harness.run()
    assert list(harness.finishes) == ["urgent", "a", "b", "late"]


def test_an_urgent_request_takes_the_slot_of_one_that_can_wait() -> None:
    harness = Harness(max_num_seqs=2)
    slow = [request(f"slow{i}", [3 + i, 4], priority=9, max_tokens=40, ignore_eos=True) for i in range(2)]
    for item in slow:
        harness.add(item)
    for _ in range(5):
        harness.step()
    harness.add(request("urgent", [5], max_tokens=2, ignore_eos=True))
    harness.step()
    assert harness.outputs[-1].record.preempted == ["slow1"]
    assert harness.answers["urgent"].tokens
    harness.run()
    for item in slow:
        assert harness.answers[item.id] == harness.expect(item)


def test_a_step_with_streams_takes_only_a_part_of_a_prompt() -> None:
    harness = Harness(max_num_batched_tokens=64, max_model_len=200)
    harness.add(request("stream", [3], max_tokens=50, ignore_eos=True))
    harness.step()
    harness.add(request("prompt", list(range(60)), max_tokens=1))
    output = harness.step()
    assert output is not None
    assert {share.id: share.tokens for share in output.record.sequences} == {"stream": 1, "prompt": 16}
    alone = Harness(max_num_batched_tokens=64)
    alone.add(request("prompt", list(range(60)), max_tokens=1))
    output = alone.step()
    assert output is not None
    assert output.record.num_tokens == 60


def test_the_record_tells_who_did_what() -> None:
    harness = Harness()
    harness.add(request("a", PROMPT, max_tokens=2, ignore_eos=True))
    first, second = harness.step(), harness.step()
    assert first is not None
    assert second is not None
    [share] = first.record.sequences
    assert (share.id, share.tokens, share.position, share.cached, share.blocks) == ("a", 21, 0, 0, 6)
    [share] = second.record.sequences
    assert (share.tokens, share.position) == (1, 21)
    record = second.record
    assert record.start <= record.scheduled <= record.forwarded <= record.end
    assert (first.record.step, record.step, record.num_sequences, record.num_tokens) == (1, 2, 1, 1)


# --- ends ------------------------------------------------------------------------------------------------


def test_each_way_to_end() -> None:
    harness = Harness(max_model_len=40)
    greedy = harness.expect(request("x", [3, 4], max_tokens=10, ignore_eos=True)).tokens
    items = [
        request("length", [3, 4], max_tokens=5, ignore_eos=True),
        request("context", [3, 4], max_tokens=None, ignore_eos=True),
        request("stop", [3, 4], stop_token_ids=(greedy[6],), ignore_eos=True),
        request("eos", [3, 4], logit_bias={EOS: 100.0}),
        request("not yet", [3, 4], logit_bias={EOS: 100.0}, min_tokens=4),
    ]
    for item in items:
        harness.add(item)
    harness.run()
    first_stop = greedy.index(greedy[6])
    assert harness.answers["length"].tokens == greedy[:5]
    assert len(harness.answers["context"].tokens) == 38
    assert harness.finishes["context"].reason is FinishReason.LENGTH
    assert harness.answers["stop"].tokens == greedy[: first_stop + 1]
    assert harness.finishes["stop"] == Finish(FinishReason.STOP, stop_token=greedy[6])
    assert harness.answers["eos"].tokens == [EOS]
    assert len(harness.answers["not yet"].tokens) == 5
    assert harness.answers["not yet"].tokens[-1] == EOS


def test_logits_that_are_no_numbers_end_their_sequence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    items = [request("good", [3, 4], max_tokens=8, ignore_eos=True), request("bad", [5, 6], max_tokens=8)]
    execute = harness.runner.execute

    def damaged(batch: Batch) -> SampledRows:
        result = execute(batch)
        result.logprobs[np.isin(batch.tokens[batch.logit_rows], [6])] = np.nan
        return result

    monkeypatch.setattr(harness.runner, "execute", damaged)
    for item in items:
        harness.add(item)
    harness.run()
    assert harness.answers["good"].tokens == harness.expect(items[0]).tokens
    assert harness.answers["bad"].tokens == []
    assert harness.finishes["bad"].reason is FinishReason.ERROR
    assert "not finite" in (harness.finishes["bad"].error or "")


def test_a_deadline_ends_a_sequence_even_while_it_waits() -> None:
    harness = Harness(max_num_seqs=1)
    now = 1000.0
    harness.core._clock = lambda: now
    for id in ("running", "waiting"):
        item = request(id, [3, 4], max_tokens=80, ignore_eos=True)
        item.deadline = 1010.0
        harness.add(item)
    harness.step()
    now = 1010.0
    output = harness.step()
    assert output is not None
    assert output.record.sequences == []
    for id in ("running", "waiting"):
        assert harness.finishes[id].reason is FinishReason.TIMEOUT
        assert "deadline" in (harness.finishes[id].error or "")
    assert not harness.core.has_work
    assert harness.core.pool.num_used == 0


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "code", "words"),
    [
        (request("a", []), "invalid_request", "no tokens"),
        (request("a", [VOCAB]), "invalid_request", f"token id {VOCAB}"),
        (request("a", [-1]), "invalid_request", "token id -1"),
        (request("a", [2] * 96), "context_length_exceeded", "96 tokens"),
        (request("a", [2], temperature=1.0, seed=None), "invalid_request", "seed"),
        (request("a", [2], stop_token_ids=(VOCAB,)), "invalid_request", "stop_token_ids"),
        (request("a", [2], temperature=math.nan), "invalid_request", "temperature"),
        (request("a", [2] * 40, max_tokens=50), "kv_cache_exceeded", "--kv-cache-memory"),
    ],
)
def test_what_cannot_be_computed_is_refused(item: GenerateRequest, code: str, words: str) -> None:
    harness = Harness(kv_cache_memory=80)
    rejected = harness.add(item)
    assert rejected is not None
    assert rejected.code == code
    assert words in rejected.message
    assert "\n" not in rejected.message
    assert not harness.core.has_work


def test_a_request_that_just_fits_is_served() -> None:
    harness = Harness(kv_cache_memory=80)
    item = request(
        "a", [2] * 40, max_tokens=41, ignore_eos=True
    )  # the last token is never computed: 80 positions
    assert harness.add(item) is None
    assert harness.add(request("b", [2] * 40, max_tokens=42)) is not None
    harness.run()
    assert len(harness.answers["a"].tokens) == 41


def test_the_waiting_queue_is_bounded() -> None:
    harness = Harness(max_num_seqs=2, max_waiting=3)
    answers = [harness.add(request(str(i), [3 + i])) for i in range(7)]
    assert [rejected.code if rejected else None for rejected in answers] == [None] * 5 + ["queue_full"] * 2
    resumed = request("again", [9])
    resumed.resumed = True
    assert harness.add(resumed) is None
    harness.run()
    assert len(harness.finishes) == 6


def test_an_id_is_used_once_at_a_time() -> None:
    harness = Harness()
    assert harness.add(request("a", [3])) is None
    rejected = harness.add(request("a", [4]))
    assert rejected is not None
    assert rejected.code == "duplicate_id"
    harness.run()
    assert harness.add(request("a", [4])) is None


def test_an_abort_frees_all_blocks_at_once() -> None:
    harness = Harness()
    for i in range(4):
        harness.add(request(str(i), [3 + i] * 10))
    harness.step()
    harness.step()
    harness.core.abort(["0", "1", "2", "3", "unknown"])
    assert harness.core.pool.num_used == 0
    output = harness.core.step()
    assert output is not None
    assert (output.stats.running, output.stats.blocks_used, output.record.sequences) == (0, 0, [])
    assert not harness.core.has_work
    assert harness.core.step() is None
