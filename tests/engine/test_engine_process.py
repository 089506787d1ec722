"""The engine in its process: streams through sockets, and what happens when the process dies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from engine_fakes import expect, request

from schedules import Answer
from tokentrail.engine import EngineClient, EngineConfig
from tokentrail.engine.child import EngineChild
from tokentrail.protocol import (
    Abort,
    Delta,
    EngineDead,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    ModelFileError,
    Overloaded,
    StepRecord,
)

RUNNER = "engine_fakes:FakeRunner"
CONTEXT = 96


def config(**changes: object) -> EngineConfig:
    values: dict = {
        "block_size": 4,
        "max_model_len": CONTEXT,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "kv_cache_memory": 512,
    }
    return EngineConfig(**{**values, **changes})


@asynccontextmanager
async def engine(**changes: object) -> AsyncIterator[EngineClient]:
    client = EngineClient(config(**changes), runner=RUNNER)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def collect(
    client: EngineClient, item: GenerateRequest, then: Callable[[Delta], None] | None = None
) -> Answer:
    answer = Answer(top=[] if item.sampling.logprobs else None)
    first = True
    async for delta in client.generate(item):
        if first:
            assert delta.cached_tokens is not None
        answer.take(delta, first=first)
        first = False
        if then is not None:
            then(delta)
    return answer


def some_requests(count: int, seed: int = 0, **sampling: object) -> list[GenerateRequest]:
    """Prompts of all lengths, some sharing beginnings; greedy and seeded."""
    rng = random.Random(seed)
    shared = [rng.randrange(64) for _ in range(20)]
    items = []
    for index in range(count):
        prompt = shared[: rng.randrange(20)] + [rng.randrange(64) for _ in range(rng.randrange(1, 12))]
        options = {
            "temperature": rng.choice([0.0, 1.0]),
            "seed": index,
            "max_tokens": rng.randrange(5, 50),
            "ignore_eos": rng.random() < 0.7,
            "logprobs": rng.choice([None, 0, 3]),
            "prompt_logprobs": rng.choice([None, None, 2]),
            **sampling,
        }
        items.append(request(f"r{index}", prompt, choice=index % 3, **options))
    return items


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.005)


def gone(pid: int) -> bool:
    """The process does not exist, or is only waiting to be collected."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"


# --- streams -----------------------------------------------------------------------------------------------


async def test_many_streams_at_once_are_each_their_own() -> None:
    async with engine(kv_cache_memory=200) as client:
        assert client.alive
        assert client.info.num_blocks == 50
        items = some_requests(40)
        answers = await asyncio.gather(*(collect(client, item) for item in items))
        for item, answer in zip(items, answers, strict=True):
            assert answer == expect(item, CONTEXT)
        assert client.stats.blocks_used == 0
        assert client.stats.generated_tokens == sum(len(answer.tokens) for answer in answers)


async def test_closing_a_stream_frees_its_blocks() -> None:
    async with engine(model="fake:?delay=0.002") as client:
        stream = client.generate(request("a", [3, 4], max_tokens=90, ignore_eos=True))
        async for _ in stream:
            break
        assert client.stats.blocks_used > 0
        steps = client.stats.steps
        await stream.aclose()
        await until(lambda: client.stats.blocks_used == 0)
        assert client.stats.running == 0
        assert client.stats.steps <= steps + 2
        # A cancelled task closes its stream as well.
        task = asyncio.create_task(collect(client, request("b", [3, 4], max_tokens=90, ignore_eos=True)))
        await until(lambda: client.stats.running == 1)
        task.cancel()
        await until(lambda: client.stats.running == 0)
        # The id can be used again, and nothing of the old stream is seen.
        item = request("b", [5], max_tokens=4)
        assert await collect(client, item) == expect(item, CONTEXT)


async def test_blocks_are_told_at_rest_and_at_work_and_not_by_the_dead() -> None:
    async with engine(model="fake:?delay=0.002") as client:
        (at_rest,) = await client.block_states()
        assert set(at_rest) == {0}
        assert len(at_rest) == client.info.num_blocks
        item = request("a", [1, 2, 3, 4, 5], max_tokens=60, ignore_eos=True)
        stream = client.generate(item)
        await anext(stream)
        first, second = await asyncio.gather(client.block_states(), client.block_states())
        assert 2 in first[0]
        assert first == second
        await stream.aclose()
        await collect(client, request("b", [1, 2, 3, 4, 5], max_tokens=2))
        (after,) = await client.block_states()
        assert 1 in after, "what was computed is remembered"
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(client.block_states())
        await asyncio.sleep(0)
        os.kill(client.pid, signal.SIGKILL)
        assert await asyncio.wait_for(asked, 30) == []
    assert await client.block_states() == []


async def test_logits_are_told_with_the_first_token_of_who_asks() -> None:
    async with engine() as client:
        plain = request("a", [7, 8, 9], max_tokens=4, ignore_eos=True)
        asking = msgspec.structs.replace(plain, id="b", reveal=True)
        told: list[bytes | None] = []
        answers = await asyncio.gather(
            collect(client, plain), collect(client, asking, lambda delta: told.append(delta.logits))
        )
        assert answers[0].tokens == answers[1].tokens
        assert told[0] is not None
        assert told[1:] == [None] * 3
        logits = array("f", told[0])
        assert len(logits) == client.info.vocab_size
        assert max(range(len(logits)), key=logits.__getitem__) == answers[0].tokens[0]
        # An answer that has begun goes on where it was, and tells them for the token that comes next.
        more = msgspec.structs.replace(plain, id="c", output=answers[0].tokens[:2], reveal=True)
        deltas = [delta async for delta in client.generate(more)]
        assert [token for delta in deltas for token in delta.token_ids] == answers[0].tokens[2:]
        assert deltas[0].logits not in (None, told[0])


async def test_an_abort_by_id_ends_the_stream() -> None:
    async with engine(model="fake:?delay=0.002") as client:
        task = asyncio.create_task(collect(client, request("a", [3, 4], max_tokens=90, ignore_eos=True)))
        await until(lambda: client.stats.running == 1)
        await client.abort(["a", "unknown"])
        answer = await task
        assert answer.reason is FinishReason.ABORT
        await until(lambda: client.stats.blocks_used == 0)


async def test_refusals_become_errors() -> None:
    async with engine(max_num_seqs=1, max_waiting=2, model="fake:?delay=0.002") as client:
        tasks = [
            asyncio.create_task(collect(client, request(str(i), [3 + i], max_tokens=50, ignore_eos=True)))
            for i in range(6)
        ]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [result for result in results if isinstance(result, Overloaded)]
        assert 1 <= len(refused) <= 4
        assert refused[0].status == 429
        assert all(isinstance(result, (Answer, Overloaded)) for result in results)
        with pytest.raises(InvalidRequest, match="96 tokens") as error:
            await collect(client, request("long", [2] * 96))
        assert error.value.code == "context_length_exceeded"


async def test_step_listeners_hear_what_streams_get() -> None:
    records: list[StepRecord] = []
    heard: list[int] = []

    def broken(record: StepRecord, deltas: list[Delta]) -> None:
        raise ValueError

    def listen(record: StepRecord, deltas: list[Delta]) -> None:
        records.append(record)
        heard.extend(token for delta in deltas for token in delta.token_ids)

    async with engine() as client:
        client.add_step_listener(broken)
        client.add_step_listener(listen)
        answer = await collect(client, request("a", [3, 4], max_tokens=5, ignore_eos=True))
        assert heard == answer.tokens
        assert [record.step for record in records] == [1, 2, 3, 4, 5]


# --- starting and ending -----------------------------------------------------------------------------------


async def test_loading_tells_how_far_it_is() -> None:
    seen: list[tuple[int, int]] = []
    client = EngineClient(config(model="fake:?loading=0.6"), runner=RUNNER)
    await client.start(lambda done, total: seen.append((done, total)))
    await client.close()
    assert 2 <= len(seen) <= 6, "a tenth of a second apart at least"
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {1000}


async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.touch()
    client = EngineClient(config(model=f"fake:?fail_start={bad}"), runner=RUNNER)
    with pytest.raises(ModelFileError, match=r"^model\.gguf: the magic is wrong"):
        await client.start()
    assert not client.alive
    with pytest.raises(EngineDead):
        await collect(client, request("a", [3]))
    await client.close()


async def test_a_process_that_dies_at_its_start_says_so() -> None:
    client = EngineClient(config(), runner="os:abort_is_no_such_name")
    with pytest.raises(EngineDead, match="AttributeError"):
        await client.start()


async def test_close_ends_the_process_and_the_streams() -> None:
    client = EngineClient(config(model="fake:?delay=0.002"), runner=RUNNER)
    await client.start()
    pid = client.pid
    assert pid is not None
    task = asyncio.create_task(collect(client, request("a", [3, 4], max_tokens=90, ignore_eos=True)))
    await until(lambda: client.stats.running == 1)
    await client.close()
    with pytest.raises(EngineDead, match="shut down"):
        await task
    assert gone(pid)
    assert not client.alive


async def test_the_engine_leaves_signals_to_its_parent() -> None:
    async with engine(model="fake:?delay=0.001") as client:
        assert client.pid is not None
        item = request("a", [3, 4], max_tokens=60, ignore_eos=True)
        task = asyncio.create_task(collect(client, item))
        await until(lambda: client.stats.running == 1)
        os.kill(client.pid, signal.SIGINT)
        os.kill(client.pid, signal.SIGTERM)
        assert await task == expect(item, CONTEXT)
        assert client.restarts == 0


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_ends_with_its_parent(way: signal.Signals, tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import asyncio
        from tokentrail.engine import EngineClient, EngineConfig
        async def main():
            client = EngineClient(EngineConfig(), runner="engine_fakes:FakeRunner")
            await client.start()
            print(client.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.send_signal(way)
        parent.wait()
        end = time.monotonic() + 5
        while not gone(child):
            assert time.monotonic() < end, "the engine process outlives its parent"
            time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []


# --- deaths ------------------------------------------------------------------------------------------------


async def test_ten_kills_under_load_change_no_byte() -> None:
    restarted = 0

    def on_resume(ids: list[str]) -> None:
        nonlocal restarted
        restarted += 1
        assert ids

    async with engine(kv_cache_memory=300, model="fake:?delay=0.003") as client:
        client.add_resume_listener(on_resume)
        items = some_requests(24, seed=1, ignore_eos=True, max_tokens=60)
        streams = [asyncio.create_task(collect(client, item)) for item in items]
        for _ in range(10):
            assert not all(stream.done() for stream in streams), "the load ended before the kills did"
            seen = client.stats.generated_tokens
            await until(lambda seen=seen: client.alive and client.stats.generated_tokens >= seen + 10)
            pid = client.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: client.pid != pid)
        answers = await asyncio.gather(*streams)
        for item, answer in zip(items, answers, strict=True):
            assert answer == expect(item, CONTEXT)
        assert client.restarts == restarted == 10
        await until(lambda: client.stats.blocks_used == 0)


async def test_an_engine_that_hangs_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(model="fake:?delay=0.003", step_timeout=1.0) as client:
        # Idle, it may be silent for as long as it likes; also after an abort that came too late.
        stream = client.generate(request("x", [3, 4], max_tokens=3, ignore_eos=True))
        async for _ in stream:
            break
        await stream.aclose()
        await asyncio.sleep(1.6)
        assert client.restarts == 0
        items = some_requests(6, seed=2, ignore_eos=True, max_tokens=60)
        streams = [asyncio.create_task(collect(client, item)) for item in items]
        await until(lambda: client.stats.generated_tokens >= 20)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        answers = await asyncio.gather(*streams)
        for item, answer in zip(items, answers, strict=True):
            assert answer == expect(item, CONTEXT)
        assert client.restarts == 1
        assert "has finished no step for 1 s" in caplog.text
        # All who asked have left, and still it owes a word.
        task = asyncio.create_task(collect(client, request("y", [3, 4], max_tokens=90, ignore_eos=True)))
        await until(lambda: client.stats.running == 1)
        os.kill(client.pid, signal.SIGSTOP)
        task.cancel()
        await until(lambda: client.restarts == 2)
        item = request("z", [3, 4], max_tokens=5)
        assert await collect(client, item) == expect(item, CONTEXT)


async def test_requests_made_while_the_engine_restarts_wait_for_it() -> None:
    async with engine() as client:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: not client.alive)
        item = request("a", [3, 4])
        assert await collect(client, item) == expect(item, CONTEXT)


async def test_three_deaths_in_a_row_end_what_is_in_flight(tmp_path: Path) -> None:
    async with engine(model="fake:?crash_token=63") as client:
        with pytest.raises(EngineDead, match=r"died 3 times in a row \(killed by SIGKILL\)") as error:
            await collect(client, request("poison", [3, 63]))
        assert error.value.status == 503
        # Until it is back, new requests are refused at once.
        assert not client.alive
        with pytest.raises(EngineDead, match="being restarted"):
            await collect(client, request("b", [3]))
        await until(lambda: client.alive)
        item = request("c", [3, 4])
        assert await collect(client, item) == expect(item, CONTEXT)


async def test_a_poison_request_ends_alone() -> None:
    async with engine(model="fake:?crash_token=63&delay=0.002") as client:
        # Without token 63 in their own answers.
        items = [
            request(f"r{i}", [3 + i, 4], max_tokens=80, ignore_eos=True, logit_bias={63: -100.0})
            for i in range(4)
        ]
        streams = [asyncio.create_task(collect(client, item)) for item in items]
        await until(lambda: client.stats.running == 4)
        with pytest.raises(EngineDead, match="3 times"):
            await collect(client, request("poison", [5, 63], max_tokens=5))
        answers = await asyncio.gather(*streams)
        for item, answer in zip(items, answers, strict=True):
            assert answer == expect(item, CONTEXT)
        assert client.restarts <= 6


async def test_an_engine_that_cannot_start_again(tmp_path: Path) -> None:
    flag = tmp_path / "broken"
    async with engine(model=f"fake:?delay=0.01&fail_start={flag}") as client:
        task = asyncio.create_task(collect(client, request("a", [3, 4], max_tokens=90, ignore_eos=True)))
        await until(lambda: client.stats.running == 1)
        flag.touch()
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="the magic is wrong"):
            await task
        flag.unlink()
        await until(lambda: client.alive)
        item = request("b", [3, 4])
        assert await collect(client, item) == expect(item, CONTEXT)


async def test_an_answer_does_not_go_on_with_another_model(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_text("one")
    async with engine(model=f"fake:?delay=0.005&fingerprint={model}", max_num_seqs=1) as client:
        begun = asyncio.create_task(collect(client, request("a", [3, 4], max_tokens=90, ignore_eos=True)))
        waiting = asyncio.create_task(collect(client, request("b", [5, 6], max_tokens=9, ignore_eos=True)))
        await until(lambda: client.stats.generated_tokens > 3)
        model.write_text("two")
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="another model"):
            await begun
        assert len((await waiting).tokens) == 9
        assert client.info.fingerprint == "two"


def _run(main: Callable[[], Awaitable[None]]) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32" or sys.version_info < (3, 11), reason="uvloop; asyncio.Runner")
def test_it_all_works_on_uvloop() -> None:
    async def main() -> None:
        async with engine(model="fake:?delay=0.002") as client:
            item = request("a", [3, 4], max_tokens=60, ignore_eos=True)
            task = asyncio.create_task(collect(client, item))
            await until(lambda: client.stats.generated_tokens > 5)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            assert await task == expect(item, CONTEXT)
            assert client.restarts == 1
            # A request that comes when the socket is closed, and the death not known yet: uvloop refuses to write then.
            assert client.pid is not None
            child = client._child
            assert child is not None
            assert child._connection.transport is not None
            os.kill(client.pid, signal.SIGKILL)
            await until(child._connection.transport.is_closing)
            child.send(Abort(["b"]))
            item = request("c", [3, 4])
            assert await collect(client, item) == expect(item, CONTEXT)

    _run(main)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (3, "exit status 3"),
        (-9, "killed by SIGKILL"),
        (-250, "killed by signal 250"),
        (-signal.SIGBUS, "cut short"),
    ],
)
def test_how_a_process_ended(code: int, said: str) -> None:
    """A mapped model file that becomes shorter while it is read ends the process by SIGBUS."""
    child = EngineChild(SimpleNamespace(returncode=code), None)
    assert said in child.exit_status
