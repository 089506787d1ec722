"""Several engine processes as one: who gets a request, and what becomes of it when a process dies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine_fakes import expect, request

from schedules import Answer
from tokentrail.engine import EngineConfig
from tokentrail.engine.affinity import PrefixMap
from tokentrail.engine.cores import divide, own_cores, parse_cores
from tokentrail.engine.replicas import ReplicaSet
from tokentrail.protocol import Delta, EngineDead, GenerateRequest, StepRecord, TokentrailError

CONTEXT = 256


@asynccontextmanager
async def replicas(count: int = 2, **changes: object) -> AsyncIterator[ReplicaSet]:
    values: dict = {
        "block_size": 4,
        "max_model_len": CONTEXT,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "kv_cache_memory": 2048,
        "model": "fake:?delay=0.003",
    }
    config = EngineConfig(**{**values, **changes})
    engines = ReplicaSet(config, [()] * count, runner="engine_fakes:FakeRunner")
    await engines.start()
    try:
        yield engines
    finally:
        await engines.close()


async def collect(engines: ReplicaSet, item: GenerateRequest) -> Answer:
    queue: asyncio.Queue[Delta | TokentrailError] = asyncio.Queue()
    drop = engines.submit(item, queue.put_nowait)
    answer = Answer(top=None)
    first = True
    try:
        while True:
            delta = await queue.get()
            if isinstance(delta, TokentrailError):
                raise delta
            answer.take(delta, first=first)
            first = False
            if delta.finish is not None:
                return answer
    finally:
        drop()


def requests(count: int, **sampling: object) -> list[GenerateRequest]:
    rng = random.Random(count)
    options: dict = {"temperature": 1.0, "max_tokens": 60, "ignore_eos": True, **sampling}
    return [
        request(f"r{k}", [rng.randrange(60) for _ in range(rng.randrange(1, 20))], seed=k, **options)
        for k in range(count)
    ]


async def until(condition: object) -> None:
    for _ in range(4000):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


async def test_requests_go_on_elsewhere_when_processes_die_or_hang() -> None:
    async with replicas(step_timeout=1.0) as engines:
        one, other = engines.replicas
        steps: list[StepRecord] = []
        resumed: list[str] = []
        engines.add_step_listener(lambda record, deltas: steps.append(record))
        engines.add_resume_listener(resumed.extend)
        items = requests(12)
        streams = [asyncio.create_task(collect(engines, item)) for item in items]
        await until(lambda: engines.stats.generated_tokens >= 30)
        assert one.load == other.load == 6
        assert {record.replica for record in steps} == {0, 1}
        assert one.pid is not None
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: not one.alive)
        # At once, not when the dead one has started again.
        assert (one.load, other.load, engines.moved) == (0, 12, 6)
        assert engines.alive
        for item, answer in zip(items, await asyncio.gather(*streams), strict=True):
            assert answer == expect(item, CONTEXT)
        assert len(resumed) == len(set(resumed)) == 6
        await until(lambda: one.alive)
        assert engines.restarts == 1
        # All at once: what waits goes to the first that is back.
        items = requests(6)
        streams = [asyncio.create_task(collect(engines, item)) for item in items]
        seen = engines.stats.generated_tokens
        await until(lambda: engines.stats.generated_tokens >= seen + 12)
        for replica in engines.replicas:
            assert replica.pid is not None
            os.kill(replica.pid, signal.SIGKILL)
        await until(lambda: not engines.alive)
        items.append(request("late", [3, 4]))
        streams.append(asyncio.create_task(collect(engines, items[-1])))
        for item, answer in zip(items, await asyncio.gather(*streams), strict=True):
            assert answer == expect(item, CONTEXT)
        # One that hangs is ended, and its answers go on meanwhile.
        await until(lambda: one.alive and other.alive)
        moved = engines.moved
        items = requests(4, max_tokens=100)
        streams = [asyncio.create_task(collect(engines, item)) for item in items]
        seen = engines.stats.generated_tokens
        await until(lambda: engines.stats.generated_tokens >= seen + 12)
        hung = max(engines.replicas, key=lambda replica: replica.load)
        assert hung.pid is not None
        os.kill(hung.pid, signal.SIGSTOP)
        for item, answer in zip(items, await asyncio.gather(*streams), strict=True):
            assert answer == expect(item, CONTEXT)
        assert engines.moved > moved


async def test_a_poison_does_not_take_the_others_along() -> None:
    async with replicas(model="fake:?crash_token=63&delay=0.002") as engines:
        items = requests(6, max_tokens=200, logit_bias={63: -100.0})
        streams = [asyncio.create_task(collect(engines, item)) for item in items]
        await until(lambda: engines.stats.generated_tokens >= 12)
        with pytest.raises(EngineDead):
            await collect(engines, request("poison", [5, 63], max_tokens=5))
        for item, answer in zip(items, await asyncio.gather(*streams), strict=True):
            assert answer == expect(item, CONTEXT)
        # One death each, and what the last one's three strikes or three deaths take.
        assert engines.restarts <= 6
        await until(lambda: all(replica.alive for replica in engines.replicas))
        item = request("later", [3, 4])
        assert await collect(engines, item) == expect(item, CONTEXT)


async def test_sessions_stay_and_prefixes_draw() -> None:
    async with replicas(3, model=None) as engines:

        async def home(item: GenerateRequest) -> int:
            found: list[int] = []
            task = asyncio.create_task(collect(engines, item))
            await asyncio.sleep(0)
            found = [replica.number for replica in engines.replicas if replica.load]
            await task
            assert len(found) == 1
            return found[0]

        def asked(id: str, prompt: list[int], **fields: object) -> GenerateRequest:
            item = request(id, prompt, max_tokens=2)
            for name, value in fields.items():
                setattr(item, name, value)
            return item

        # Without a word about it, in turn.
        assert {await home(asked(f"a{k}", [k])) for k in range(3)} == {0, 1, 2}
        for name in "xyz":
            homes = {await home(asked(f"{name}{k}", [k], session=name)) for k in range(4)}
            assert len(homes) == 1
        shared = [k % 60 for k in range(130)]
        first = await home(asked("p", shared))
        for k in range(4):
            assert await home(asked(f"p{k}", [*shared[:128], k])) == first
        # Another salt shares nothing, so it is no reason to go there.
        assert len({await home(asked(f"s{k}", [*shared, k], salt=str(k))) for k in range(3)}) == 3


def test_beginnings_of_prompts() -> None:
    known = PrefixMap(capacity=4)
    long = list(range(200))
    hashes = known.hashes(long, "salt")
    assert len(hashes) == 3
    assert known.hashes(long[:130], "salt") == hashes[:2]
    assert known.hashes(long, "other")[0] != hashes[0]
    known.add(hashes[:1], 0)
    known.add(hashes, 2)
    assert known.engines(hashes) == {2}
    assert known.engines(hashes[:1]) == {0, 2}
    assert known.engines(known.hashes([5] * 70, "salt")) == frozenset()
    known.forget(2)
    assert known.engines(hashes) == {0}
    for k in range(9):
        known.add(known.hashes([k] * 64, ""), 1)
    assert len(known) == 4


def test_cores_are_divided_between_replicas(tmp_path: Path) -> None:
    assert divide(range(8), 2, tmp_path) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert divide([1, 3, 5], 2, tmp_path) == [(1,), (3, 5)]
    assert divide([4, 7], 3, tmp_path) == [(4,), (7,), (4,)]
    for cpu in range(4):  # hyperthreads: 0 and 2, 1 and 3
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    assert divide(range(4), 2, tmp_path) == [(0, 2), (1, 3)]
    assert parse_cores("0-2, 7") == (0, 1, 2, 7)
    for wrong in ("", "a", "3-1", "1,1", "0-9999", "-1"):
        with pytest.raises(ValueError, match="core"):
            parse_cores(wrong)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes cannot be pinned here")
async def test_a_process_is_pinned_to_its_cores() -> None:
    core = own_cores()[-1]
    config = EngineConfig(block_size=4, max_model_len=64, kv_cache_memory=256)
    engines = ReplicaSet(config, [(core,)], runner="engine_fakes:FakeRunner")
    await engines.start()
    try:
        pid = engines.replicas[0].pid
        assert pid is not None
        assert os.sched_getaffinity(pid) == {core}
    finally:
        await engines.close()
    with pytest.raises(TokentrailError, match="cannot be pinned to the cores 4095"):
        await ReplicaSet(config, [(4095,)], runner="engine_fakes:FakeRunner").start()
