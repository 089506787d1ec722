"""The benchmarks measure what they say: against a server of known speed, and the real engine."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, program

from tokentrail.cli.bench import serve as bench_serve
from tokentrail.cli.bench.report import Summary, quantile, random_token_ids
from tokentrail.cli.bench.serve import LoadOptions, make_bodies
from tokentrail.ops.native.machine import PEAKS, MachineProbe


class TimedServer:
    """A completions server that takes `first` seconds to its first token and `gap` to each further one."""

    first = 0.05
    gap = 0.01

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.arrivals: list[float] = []
        self.running = self.peak = 0
        self.refuse_every = 0
        self.port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self) -> None:
        async def main() -> None:
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            self._stop = asyncio.Event()
            self._ready.set()
            await self._stop.wait()

        self._loop.run_until_complete(main())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = [
                    int(line.split(":")[1])
                    for line in head.split("\r\n")
                    if line.startswith("content-length")
                ]
                body = await reader.readexactly(length[0]) if length else b""
                if head.startswith("get"):
                    self._whole(writer, 200, {"data": [{"id": "timed"}]})
                else:
                    await self._complete(json.loads(body), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _whole(self, writer: asyncio.StreamWriter, status: int, data: Any) -> None:
        body = json.dumps(data).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.arrivals.append(time.perf_counter())
        self.bodies.append(body)
        if self.refuse_every and len(self.bodies) % self.refuse_every == 0:
            self._whole(writer, 429, {"error": {"message": "full"}})
            return
        self.running += 1
        self.peak = max(self.peak, self.running)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for index in range(body["max_tokens"]):
            await asyncio.sleep(self.gap if index else self.first)
            self._event(writer, {"choices": [{"text": "x", "delta": {"content": "x"}}]})
            await writer.drain()
        prompt = body.get("prompt") or body["messages"][0]["content"].split()
        self._event(
            writer,
            {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": body["max_tokens"]}},
        )
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        self.running -= 1

    def _event(self, writer: asyncio.StreamWriter, data: Any) -> None:
        event = f"data: {json.dumps(data)}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))


@pytest.fixture
def timed() -> Iterator[TimedServer]:
    server = TimedServer()
    yield server
    server.close()


def bench(run: Run, server: TimedServer, tmp_path: Path, *more: str) -> tuple[int, str, dict[str, Any]]:
    output = tmp_path / "result.json"
    outcome = run(
        "bench", "serve", "--url", f"http://127.0.0.1:{server.port}", "--output", str(output), *more
    )
    return outcome.code, outcome.out + outcome.err, json.loads(output.read_text())


def test_closed_loop_measures_what_the_server_does(timed: TimedServer, run: Run, tmp_path: Path) -> None:
    code, printed, result = bench(
        run, timed, tmp_path, "--num-prompts", "12", "--concurrency", "4", "--random-input-len", "20",
        "--random-output-len", "10", "--ignore-eos", "--warmup", "2",
    )  # fmt: skip
    assert code == 0
    assert (result["completed"], result["failed"], result["peak_concurrency"]) == (12, 0, 4)
    assert len(timed.bodies) == 14
    assert timed.peak == 4
    assert (result["input_tokens"], result["output_tokens"]) == (240, 120)
    body = timed.bodies[-1]
    assert (body["model"], body["max_tokens"], body["ignore_eos"], body["stream"]) == (
        "timed",
        10,
        True,
        True,
    )
    assert len(body["prompt"]) == 20
    assert all(isinstance(id, int) for id in body["prompt"])
    # Times are the server's own, and whatever a busy test machine adds.
    assert timed.first <= result["ttft"]["p50"] < timed.first + 0.1
    assert timed.gap <= result["itl"]["p50"] < timed.gap + 0.03
    assert result["tpot"]["p50"] == pytest.approx(result["itl"]["mean"], rel=0.5)
    assert result["e2el"]["mean"] >= timed.first + 9 * timed.gap
    assert result["output_throughput"] == pytest.approx(120 / result["duration"])
    assert 3 * (timed.first + 9 * timed.gap) <= result["duration"] < 3
    assert len(result["requests"]) == 12
    for word in ("TTFT", "TPOT", "ITL", "E2EL", "12 completed"):
        assert word in printed


def test_open_loop_is_a_poisson_process_that_waits_for_nobody(
    timed: TimedServer, run: Run, tmp_path: Path
) -> None:
    timed.first = 0.5
    _, _, result = bench(
        run, timed, tmp_path, "--num-prompts", "40", "--request-rate", "80", "--random-output-len", "1",
        "--warmup", "0", "--seed", "3",
    )  # fmt: skip
    assert result["completed"] == 40
    # Far more are under way than a closed loop of a few would allow: arrivals don't wait for answers.
    assert result["peak_concurrency"] > 20
    spread = timed.arrivals[-1] - timed.arrivals[0]
    assert 0.25 < spread < 1.0  # 39 intervals of 1/80 s on average
    gaps = [after - before for before, after in zip(timed.arrivals, timed.arrivals[1:], strict=False)]
    assert max(gaps) > 2 * spread / 39


def test_the_same_seed_sends_the_same() -> None:
    options = LoadOptions(input_len="5-50", output_len="2-9")
    first = make_bodies(options, "m", 20, random.Random(1))
    assert first == make_bodies(options, "m", 20, random.Random(1))
    assert first != make_bodies(options, "m", 20, random.Random(2))
    lengths = [len(body["prompt"]) for body in first]
    assert 5 <= min(lengths) < max(lengths) <= 50
    assert 2 <= min(body["max_tokens"] for body in first) < max(body["max_tokens"] for body in first) <= 9
    assert len({tuple(body["prompt"]) for body in first}) == 20


def test_chat_sends_words(timed: TimedServer, run: Run, tmp_path: Path) -> None:
    code, _, result = bench(
        run, timed, tmp_path, "--num-prompts", "2", "--endpoint", "chat", "--random-input-len", "7",
        "--random-output-len", "2", "--model", "named",
    )  # fmt: skip
    assert code == 0
    body = timed.bodies[-1]
    assert body["model"] == "named"
    assert "ignore_eos" not in body
    assert len(body["messages"][0]["content"].split()) == 7
    assert result["input_tokens"] == 14


def test_failures_are_counted_and_explained(timed: TimedServer, run: Run, tmp_path: Path) -> None:
    timed.refuse_every = 3
    code, printed, result = bench(
        run,
        timed,
        tmp_path,
        "--num-prompts",
        "9",
        "--concurrency",
        "1",
        "--random-output-len",
        "1",
        "--warmup",
        "0",
    )
    assert code == 1
    assert (result["completed"], result["failed"]) == (6, 3)
    assert result["failures"] == {"HTTP 429: full": 3}
    assert "3 × HTTP 429: full" in printed
    assert "3 of 9 requests failed" in printed


def test_all_failed_is_still_a_report(timed: TimedServer, run: Run, tmp_path: Path) -> None:
    timed.refuse_every = 1
    code, printed, result = bench(run, timed, tmp_path, "--num-prompts", "2", "--warmup", "0")
    assert code == 1
    assert result["completed"] == 0
    assert result["ttft"] == {}
    assert "2 × HTTP 429: full" in printed


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 101)]
    assert Summary(values) == {
        "mean": 50.5,
        "p50": 50.5,
        "p90": pytest.approx(90.1),
        "p99": pytest.approx(99.01),
    }
    assert Summary([]) == {}
    assert quantile([3.0], 0.99) == 3.0


def test_random_ids_stay_in_the_vocabulary() -> None:
    rng = random.Random(0)
    assert all(300 <= id < 1000 for id in random_token_ids(500, 1000, rng))
    assert all(0 <= id < 40 for id in random_token_ids(50, 40, rng))
    counts = Counter(random_token_ids(5000, 310, rng))
    assert set(counts) == set(range(300, 310))


def test_words_are_words() -> None:
    text = bench_serve._random_text(50, random.Random(0))
    assert len(text.split()) == 50


@pytest.mark.usefixtures("demo_path")
def test_throughput_of_the_engine(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    outcome = program(
        "bench",
        "throughput",
        "--num-prompts",
        "3",
        "--input-len",
        "8-16",
        "--output-len",
        "4",
        "-o",
        str(output),
    )
    assert outcome.code == 0, outcome.err
    result = json.loads(output.read_text())
    assert result["output_tokens"] == 12
    assert 24 <= result["input_tokens"] <= 48
    assert result["output_throughput"] == pytest.approx(12 / result["duration"])
    assert 0 < result["forward_share"] <= 1
    assert "output tokens/s" in outcome.out


@pytest.mark.usefixtures("demo_path")
def test_latency_of_the_engine(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    outcome = program(
        "bench", "latency", "--batch-size", "2", "--input-len", "8", "--output-len", "4", "--num-iters", "2",
        "-o", str(output),
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    result = json.loads(output.read_text())
    assert result["ttft"]["p50"] + 3 * result["itl"]["mean"] <= result["latency"]["p99"] * 1.5
    too_long = program("bench", "latency", "--input-len", "9000")
    assert too_long.code == 1
    assert "do not fit the context of 8192" in too_long.err


@pytest.mark.usefixtures("demo_path")
def test_roofline_counts_what_a_step_must_do(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rates are measured by test_machine.py; here they would take most of the time.
    monkeypatch.setattr(MachineProbe, "bandwidth", lambda self: 1e10)
    monkeypatch.setattr(MachineProbe, "macs", lambda self: dict.fromkeys(PEAKS, 1e11))
    output = tmp_path / "result.json"
    outcome = run(
        "bench", "roofline", "--batch-sizes", "1,2", "--context", "20", "--prefill", "32", "--seconds", "0",
        "--threads", "1", "-o", str(output),
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    result = json.loads(output.read_text())
    one, two, prefill = result["steps"]
    layers, head = 106_168_320, 28_311_552  # multiply–accumulates a token, as many as weights
    tensors, kv_token = 96_611_328, 30 * 2 * 3 * 64 * 2
    assert sum(_macs(one, "linear").values()) == layers + head
    assert sum(_macs(two, "linear").values()) == 2 * (layers + head)
    assert sum(_macs(prefill, "linear").values()) == 32 * layers + head  # logits of the last token only
    assert _macs(one, "attention") == {"bf16": 30 * 9 * 64 * 2 * 21}
    assert _macs(prefill, "attention") == {"bf16": 30 * 9 * 64 * 2 * (32 * 33 // 2)}
    assert two["whole"]["bytes"] - one["whole"]["bytes"] == 21 * kv_token
    assert one["whole"]["bytes"] == pytest.approx(tensors + 21 * kv_token, rel=0.001)
    for step in result["steps"]:
        assert 0 < step["sampling_seconds"] < step["whole"]["seconds"]
        assert step["whole"]["share_of_roof"] == pytest.approx(
            step["whole"]["least_seconds"] / step["whole"]["seconds"]
        )
    assert "whole step" in outcome.out


def _macs(step: dict[str, Any], op: str) -> dict[str, float]:
    total: Counter[str] = Counter()
    for name, work in step["ops"].items():
        if name.startswith(op):
            total.update(work["macs"])
    return dict(total)


@pytest.mark.usefixtures("demo_path")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-sizes", "1,x"], "'1,x' is not a list of batch sizes"),
        (["--context", "9000"], "does not fit the context of 8192"),
        (
            [
                "--kv-cache-memory",
                "200MiB",
                "--max-model-len",
                "1000",
                "--context",
                "900",
                "--batch-sizes",
                "64",
            ],
            "lower --batch-sizes",
        ),
    ],
)
def test_roofline_refuses_steps_that_do_not_fit(run: Run, flags: list[str], message: str) -> None:
    outcome = run("bench", "roofline", "--prefill", "0", *flags)
    assert outcome.code
    assert message in outcome.err
