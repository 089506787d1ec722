"""What the machine itself could do: the rate at which its cores read memory."""

from __future__ import annotations

import threading
import time

import numpy as np

BUFFER_BYTES = 256 * 2**20  # several times the last-level cache


def read_bandwidth(threads: int, repetitions: int = 5) -> float:
    """Best read rate of `threads` threads over their own part of a large buffer, in bytes per second."""
    parts = [np.ones(BUFFER_BYTES // threads // 8, dtype=np.uint64) for _ in range(threads)]
    best = 0.0
    for _ in range(repetitions):
        for read in (np.bitwise_or.reduce, lambda part: part.view(np.float32).sum()):
            barrier = threading.Barrier(threads + 1)

            def run(part: np.ndarray, read=read, barrier=barrier) -> None:
                barrier.wait()
                read(part)
                barrier.wait()

            workers = [threading.Thread(target=run, args=(part,)) for part in parts]
            for worker in workers:
                worker.start()
            barrier.wait()
            start = time.perf_counter()
            barrier.wait()
            seconds = time.perf_counter() - start
            for worker in workers:
                worker.join()
            best = max(best, sum(part.nbytes for part in parts) / seconds)
    return best
