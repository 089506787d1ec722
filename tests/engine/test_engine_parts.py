"""Smaller parts: pacing, loading, the launch message, the engine in the caller's process, and what a step
costs.
"""

from __future__ import annotations

import gc
import itertools
import random
import socket
import subprocess
import sys
import time

import pytest
from engine_fakes import FakeRunner, NullRunner, expect, request

from tokentrail.engine import EngineConfig, LocalEngine
from tokentrail.engine.core import EngineCore
from tokentrail.engine.loading import create_runner
from tokentrail.engine.pacing import Pacing
from tokentrail.engine.wire import (
    Channel,
    FrameReader,
    Launch,
    frame,
    launch_decoder,
    message_decoder,
    request_decoder,
)
from tokentrail.protocol import Abort, FinishReason, InvalidRequest, Rejected

CONFIG = EngineConfig(
    block_size=4,
    max_model_len=96,
    max_num_seqs=4,
    max_num_batched_tokens=32,
    kv_cache_memory=256,
    max_waiting=3,
)


# --- pacing ------------------------------------------------------------------------------------------------


def test_pacing_learns_from_the_steps_themselves() -> None:
    pacing = Pacing(512)
    assert pacing.cap(1) == 64  # before anything is known
    decode, prompt = 0.004, 0.0002
    for _ in range(50):
        pacing.observe(1, 0, decode)
        pacing.observe(0, 500, 500 * prompt)
        pacing.observe(1, 40, decode + 40 * prompt)
    assert pacing.cap(1) == pytest.approx(2 * decode / prompt, rel=0.1)
    for _ in range(50):
        pacing.observe(32, 0, 3 * decode)
    assert pacing.cap(32) == pytest.approx(6 * decode / prompt, rel=0.1)
    # Between sizes seen, a step's time is interpolated.
    assert pacing.cap(16) == pytest.approx(2 * decode / prompt * (1 + 2 * 15 / 31), rel=0.1)


def test_pacing_measures_a_burst_against_all_who_want_an_answer() -> None:
    pacing = Pacing(2048)
    decode, prompt = 0.004, 0.0005
    for _ in range(50):
        pacing.observe(1, 0, decode)
        pacing.observe(0, 500, 500 * prompt)
    alone = pacing.cap(1, 0)
    assert alone == pytest.approx(2 * decode / prompt, rel=0.1)
    # A batch of 32 was not seen yet: each sequence more takes at least as long as a prompt token.
    full = decode + 31 * prompt
    assert pacing.cap(1, 31) == pytest.approx((3 * full - decode) / prompt, rel=0.1)
    # From the burst's beginning to its end, a step with prompts takes as long as three of a full batch.
    for decodes in range(1, 32):
        seconds = decode + (decodes - 1) * prompt + pacing.cap(decodes, 32 - decodes) * prompt
        assert seconds == pytest.approx(3 * full, rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 10.0])
def test_pacing_keeps_within_the_budget_and_lets_prompts_advance(seconds: float) -> None:
    pacing = Pacing(512)
    for decodes, prompt in itertools.product((0, 1, 64), (0, 16, 400)):
        pacing.observe(decodes, prompt, seconds)
        assert 16 <= pacing.cap(max(decodes, 1)) <= 512
        assert 16 <= pacing.cap(1, 200) <= 512
    assert Pacing(4).cap(1) == 4


# --- loading and launching
# -----------------------------------------------------------------------------------


def test_the_runner_is_made_by_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(create_runner(CONFIG, "engine_fakes:NullRunner"), NullRunner)
    monkeypatch.setenv("TOKENTRAIL_RUNNER", "engine_fakes:FakeRunner")
    assert isinstance(create_runner(CONFIG), FakeRunner)
    with pytest.raises(ValueError, match="module:callable"):
        create_runner(CONFIG, "engine_fakes")


def test_messages_survive_the_way_however_they_are_cut() -> None:
    launch = Launch(config=CONFIG, parent=1, runner="a:b")
    messages: list[Launch | Abort] = [launch, Abort(["x" * 300_000]), Abort([]), launch]
    data = b"".join(map(frame, messages))
    rng = random.Random(0)
    for longest in (1, 7, 1000, len(data)):
        reader = FrameReader()
        parts = []
        at = 0
        while at < len(data):
            size = rng.randint(1, longest) if longest > 1 or at < 1000 else len(data)
            parts += [bytes(part) for part in reader.feed(data[at : at + size])]
            at += size
        assert [launch_decoder.decode(parts[0]), *map(request_decoder.decode, parts[1:3])] == messages[:3]
        assert launch_decoder.decode(parts[3]) == launch


def test_a_channel_waits_only_when_told_to_and_notices_the_end() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(theirs)
    assert channel.receive(wait=False) is None
    ours.sendall(frame(Abort(["a"])) + frame(Abort(["b"]))[:-1])
    first = channel.receive(wait=True)
    assert first is not None
    assert request_decoder.decode(first) == Abort(["a"])
    assert channel.receive(wait=False) is None
    ours.sendall(frame(Abort(["b"]))[-1:])
    second = channel.receive(wait=False)
    assert second is not None
    assert request_decoder.decode(second) == Abort(["b"])
    channel.send(Rejected("a", "no"))
    (sent,) = FrameReader().feed(ours.recv(1000))
    assert message_decoder.decode(sent) == Rejected("a", "no")
    ours.close()
    with pytest.raises(EOFError):
        channel.receive(wait=False)
    with pytest.raises(EOFError):
        channel.send(Rejected("a", "no"))
    channel.close()


def test_each_process_imports_only_what_it_needs() -> None:
    script = "import sys, {0}; print([name for name in {1!r} if name in sys.modules])"
    for module, unwanted in (
        (
            "tokentrail.engine.process",
            ["asyncio", "fastapi", "httpx", "tokenizers", "tokentrail.engine.client"],
        ),
        ("tokentrail.engine.client", ["numpy", "tokentrail.engine.core"]),
    ):
        output = subprocess.run(
            [sys.executable, "-c", script.format(module, unwanted)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert output.stdout.strip() == "[]", module


# --- in the caller's process
# -----------------------------------------------------------------------------------


def test_a_local_engine_serves_any_number_of_requests() -> None:
    engine = LocalEngine(CONFIG, runner="engine_fakes:FakeRunner")
    items = [request(str(i), [3 + i % 9, 4, i % 60], max_tokens=9, ignore_eos=i % 2 == 0) for i in range(30)]
    tokens: dict[str, list[int]] = {item.id: [] for item in items}
    ends: dict[str, FinishReason] = {}
    for output in engine.generate(iter(items)):
        assert output.stats.waiting <= CONFIG.max_waiting
        for delta in output.deltas:
            tokens[delta.id] += delta.token_ids
            if delta.finish is not None:
                ends[delta.id] = delta.finish.reason
    for item in items:
        expected = expect(item, engine.info.max_model_len)
        assert (tokens[item.id], ends[item.id]) == (expected.tokens, expected.reason)
    assert engine.stats.blocks_used == 0


def test_a_local_generation_that_is_left_leaves_nothing_behind() -> None:
    runner = FakeRunner(CONFIG)
    engine = LocalEngine(CONFIG, runner=runner)
    generation = engine.generate([request(str(i), [3, i], max_tokens=50, ignore_eos=True) for i in range(6)])
    next(generation)
    with pytest.raises(RuntimeError, match="already"):
        next(engine.generate([]))
    generation.close()
    assert engine.stats.blocks_used == engine.stats.running == engine.stats.waiting == 0

    with pytest.raises(InvalidRequest, match="no tokens"):
        list(engine.generate([request("a", [3]), request("b", [])]))
    assert engine.stats.running == engine.stats.waiting == 0

    generation = engine.generate(
        [request("a", [3], max_tokens=50, ignore_eos=True), request("b", [4], max_tokens=3)]
    )
    next(generation)
    engine.abort(["a"])
    seen = {delta.id for output in generation for delta in output.deltas}
    assert "a" not in seen
    engine.close()
    assert runner.closed


# --- cost --------------------------------------------------------------------------------------------------


def test_a_decode_step_of_64_sequences_costs_little() -> None:
    """Schedule, batch and results together: far under a millisecond, where a step itself takes ten or
    more.
    """
    config = EngineConfig(max_model_len=4096, max_num_seqs=64, kv_cache_memory=64 * 2048)
    core = EngineCore(config, NullRunner(config))
    for i in range(64):
        core.add_request(request(f"request-{i}", [i] * 100, max_tokens=1500, ignore_eos=True))
    while core.stats().generated_tokens < 128:
        core.step()
    gc.collect()
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(20):
            core.step()
        best = min(best, (time.perf_counter() - start) / 20)
    assert core.stats().running == 64
    assert best < 0.001
