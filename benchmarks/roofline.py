"""What the machine itself could do: the rate at which its cores read memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

BUFFER_BYTES = 256 * 2**20  # several times the last-level cache


def read_bandwidth(threads: int, repetitions: int = 5) -> float:
    """Best read rate of `threads` threads over their own part of a large buffer, in bytes per second."""
    parts = [np.ones(BUFFER_BYTES // threads // 8, dtype=np.uint64) for _ in range(threads)]
    size = sum(part.nbytes for part in parts)
    return max(
        size / _seconds(parts, read)
        for _ in range(repetitions)
        for read in (np.bitwise_or.reduce, lambda part: part.view(np.float32).sum())
    )


def _seconds(parts: list[np.ndarray], read: Callable[[np.ndarray], object]) -> float:
    """From the first thread's start to the last one's end, by their own clocks."""
    barrier = threading.Barrier(len(parts))
    spans: list[tuple[float, float]] = []

    def run(part: np.ndarray) -> None:
        barrier.wait()
        start = time.perf_counter()
        read(part)
        spans.append((start, time.perf_counter()))

    workers = [threading.Thread(target=run, args=(part,)) for part in parts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(start for start, _ in spans)
