"""Embeddings: the same bytes however a prompt is cut, cached, preempted, and in whose company."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import msgspec
import numpy as np
import pytest
from engine_fakes import VOCAB, FakeRunner, logits_of, request, stored
from engine_harness import Harness, RandomLengths

from tokentrail.engine import EngineClient
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.local import LocalEngine
from tokentrail.engine.pooling import Pool
from tokentrail.protocol import FinishReason, GenerateRequest, Pooling


def embed(id: str, prompt: list[int], kind: str = "mean", **changes: Any) -> GenerateRequest:
    options = {name: changes.pop(name) for name in ("dimensions", "normalize") if name in changes}
    plain = request(id, prompt, max_tokens=1, **changes)
    return msgspec.structs.replace(plain, pooling=Pooling(kind=kind, **options))


def expected(item: GenerateRequest) -> bytes:
    """From the model itself, in the plainest way."""
    kept: list[int] = []
    for position, token in enumerate(item.prompt):
        kept.append(stored(kept[-1] if kept else 0, token, position))
    states = [logits_of(np.array(kept[: at + 1], np.uint64)).astype(np.float64) for at in range(len(kept))]
    assert item.pooling is not None
    chosen = {"last": states[-1:], "cls": states[:1], "mean": states}[item.pooling.kind]
    total = chosen[0] * 0
    for state in chosen:
        total = total + state
    vector = (total / len(chosen))[: item.pooling.dimensions]
    if item.pooling.normalize:
        vector = vector / np.sqrt(np.cumsum(vector**2)[-1])
    return vector.astype("<f4").tobytes()


@pytest.mark.parametrize("seed", range(8))
def test_random_schedules(seed: int) -> None:
    """Beside generating requests, with chunks, a full cache, preemption and drafts."""
    chance = random.Random(seed)
    settings = {
        "max_num_batched_tokens": chance.choice([7, 16, 64]),
        "kv_cache_memory": chance.choice([112, 160, 4096]),
        "enable_prefix_caching": chance.random() < 0.8,
        "max_num_seqs": chance.choice([1, 3, 6]),
    }
    if drafting := chance.random() < 0.5:
        settings["speculative_model"] = "fake"
    harness = Harness(**settings)
    if drafting:
        assert harness.core.speculator is not None
        harness.core.speculator.lengths = RandomLengths(4, seed)
    prefix = [chance.randrange(2, VOCAB) for _ in range(20)]
    items = []
    for number in range(30):
        own = [chance.randrange(2, VOCAB) for _ in range(chance.randint(1, 30))]
        prompt = prefix[: chance.choice([0, 8, 13, 20])] + own
        priority = chance.choice([0, 0, 1])
        if chance.random() < 0.5:
            items.append(request(f"g{number}", prompt, priority=priority, max_tokens=chance.randint(1, 20)))
        else:
            kind = chance.choice(["last", "mean", "cls"])
            dimensions = chance.choice([None, 5])
            items.append(embed(f"e{number}", prompt, kind, priority=priority, dimensions=dimensions))
    for item in items:
        assert harness.add(item) is None
        for _ in range(chance.choice([0, 0, 1, 4])):
            harness.step()
    harness.run()
    for item in items:
        finish = harness.finishes[item.id]
        if item.pooling is None:
            assert harness.answers[item.id].tokens == harness.expect(item).tokens
            assert finish.embedding is None
        else:
            assert finish.reason is FinishReason.STOP
            assert finish.embedding == expected(item)
            assert harness.answers[item.id].tokens == []


def test_only_the_last_token_is_computed_of_a_cached_prompt_where_that_will_do() -> None:
    harness = Harness()
    prompt = list(range(2, 23))
    for id, kind in (("first", "last"), ("second", "last"), ("third", "mean")):
        harness.add(embed(id, prompt, kind))
        harness.run()
    assert [harness.first[id].cached_tokens for id in ("first", "second", "third")] == [0, 20, 0]


def test_a_prompt_may_fill_the_context() -> None:
    harness = Harness()
    item = embed("full", [5] * 96)
    harness.add(item)
    harness.run()
    assert harness.finishes["full"].embedding == expected(item)
    rejected = harness.add(embed("more", [5] * 97))
    assert rejected is not None
    assert rejected.code == "context_length_exceeded"


@pytest.mark.parametrize("change", [{"kind": "max"}, {"dimensions": 0}, {"dimensions": VOCAB + 1}])
def test_what_cannot_be_pooled(change: dict[str, Any]) -> None:
    rejected = Harness().add(embed("wrong", [5], **change))
    assert rejected is not None
    assert next(iter(change)).replace("kind", "pooling") in rejected.message


def test_states_that_are_not_numbers() -> None:
    harness = Harness()
    execute = harness.runner.execute

    def broken(batch):  # type: ignore[no-untyped-def]
        result = execute(batch)
        result.states[0, 3] = np.nan
        return result

    harness.runner.execute = broken  # type: ignore[method-assign]
    harness.add(embed("nan", [5, 6]))
    harness.run()
    finish = harness.finishes["nan"]
    assert finish.reason is FinishReason.ERROR
    assert "not finite" in (finish.error or "")


def test_a_mean_does_not_depend_on_its_chunks() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 7), np.float32)
    whole = Pool(Pooling(kind="mean"), 50)
    whole.add(rows)
    parts = Pool(Pooling(kind="mean"), 50)
    for first, end in ((0, 1), (1, 30), (0, 20), (20, 40), (40, 50)):  # preempted after the second
        wanted = parts.wanted(first, end)
        parts.add(rows[wanted.start : wanted.stop])
    assert parts.vector() == whole.vector()


def test_in_process() -> None:
    engine = LocalEngine(EngineConfig(max_model_len=64, block_size=4), runner=FakeRunner(EngineConfig()))
    items = [embed(str(n), list(range(2, 10 + n))) for n in range(5)]
    ends = [delta for step in engine.generate(items) for delta in step.deltas]
    assert {end.id: end.finish.embedding for end in ends if end.finish} == {i.id: expected(i) for i in items}


async def test_an_engine_that_dies_embeds_again() -> None:
    config = EngineConfig(
        model="fake:?delay=0.05",
        block_size=4,
        max_model_len=96,
        max_num_seqs=3,
        max_num_batched_tokens=8,
        kv_cache_memory=512,
    )
    client = EngineClient(config, runner="engine_fakes:FakeRunner")
    await client.start()
    try:
        items = [
            embed(str(n), list(range(2, 30 + n)), kind) for n, kind in enumerate(("last", "mean", "cls") * 3)
        ]

        async def run(item: GenerateRequest) -> bytes | None:
            (delta,) = [delta async for delta in client.generate(item)]
            assert delta.finish is not None
            return delta.finish.embedding

        running = [asyncio.ensure_future(run(item)) for item in items]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        assert await asyncio.gather(*running) == [expected(item) for item in items]
        assert client.restarts == 1
    finally:
        await client.close()
