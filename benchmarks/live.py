"""What watching costs: `GET /v1/live` at ten events a second, as a part of the engine's steps.

    python benchmarks/live.py [--streams 20]

First before an engine that computes nothing, whose steps take 20 ms: the CPU time of both processes, with and without
a watcher, over the time it took. Then on the demo model: how long a step takes, with and without, by turns.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from processes import free_port, server, tokentrail
from server_overhead import stream

RATE = 10


def cpu_seconds(pid: int) -> float:
    """To the nanosecond; /proc/PID/stat counts in hundredths of a second."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class Watcher:
    """Reads the events, and only counts them."""

    def __init__(self, port: int) -> None:
        self.events = self.bytes = 0
        self._connection = socket.create_connection(("127.0.0.1", port))
        query = f"GET /v1/live?interval={1 / RATE} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
        self._connection.sendall(query.encode())
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(ConnectionResetError):
            while data := self._connection.recv(1 << 20):
                self.events += data.count(b"data: ")
                self.bytes += len(data)

    def close(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._connection.close()


@contextmanager
def serving(idle: bool) -> Iterator[tuple[int, list[int]]]:
    """(port, the ids of API process and engine process)"""
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    os.environ.pop("TOKENTRAIL_RUNNER", None)
    if idle:
        os.environ["TOKENTRAIL_RUNNER"] = "server_overhead:IdleRunner"
    port = free_port()
    command = tokentrail("serve", "--port", str(port), "--served-model-name", "m", "--no-log-requests")
    with server([*command, "--max-num-seqs", "128"], f"http://127.0.0.1:{port}") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        stream(port, 4, 20, {})
        yield port, [process.pid, *map(int, children)]


def run(port: int, pids: list[int], streams: int, tokens: int, *, watched: bool) -> dict[str, float]:
    watcher = Watcher(port) if watched else None
    cpu, start = [cpu_seconds(pid) for pid in pids], time.perf_counter()
    stream(port, streams, tokens, {"ignore_eos": True, "temperature": 0})
    seconds = time.perf_counter() - start
    found = {"seconds": seconds, "api": cpu_seconds(pids[0]) - cpu[0], "engine": 0.0}
    found["engine"] = sum(cpu_seconds(pid) for pid in pids[1:]) - sum(cpu[1:])
    if watcher is not None:
        found |= {"events": watcher.events / seconds, "bytes": watcher.bytes / max(1, watcher.events)}
        watcher.close()
    return found


def measure(idle: bool, streams: int, tokens: int, rounds: int) -> None:
    with serving(idle) as (port, pids):
        run(port, pids, streams, tokens // 4, watched=True)
        pairs = [
            [run(port, pids, streams, tokens, watched=watched) for watched in (False, True)]
            for _ in range(rounds)
        ]
    alone, watched = zip(*pairs, strict=True)

    def middle(runs: tuple[dict[str, float], ...], name: str) -> float:
        return statistics.median(one[name] for one in runs)

    step, beside = (middle(runs, "seconds") / tokens for runs in (alone, watched))
    print(f"{'idle engine' if idle else 'demo model'}, {streams} streams of {tokens} tokens, {rounds} rounds")
    print(f"  {middle(watched, 'events'):.1f} events/s of {middle(watched, 'bytes') / 1000:.1f} KB")
    print(
        f"  step: {step * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms watched ({(beside / step - 1) * 100:+.1f} %)"
    )
    for name in ("api", "engine") if idle else ("api",):
        more = sum(w[name] - a[name] for a, w in pairs) / sum(w["seconds"] for w in watched)
        print(f"  {name} process: {more * 100:+.2f} % of a core, {more / RATE * 1e6:.0f} µs an event")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--only", choices=("idle", "demo"))
    given = parser.parse_args()
    if given.only != "demo":
        measure(True, given.streams, 200, 5)
    if given.only != "idle":
        measure(False, given.streams, 60, 5)


if __name__ == "__main__":
    sys.exit(main())
