"""Work that nobody should wait for: a bounded queue, and a thread that takes from it what has come."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Batches(Generic[T]):
    """Hands on items in batches, from a thread of its own. Putting is cheap and never waits; when the queue is full,
    items are dropped and counted.
    """

    def __init__(
        self,
        work: Callable[[list[T]], None],
        *,
        name: str,
        capacity: int = 10_000,
        batch: int = 512,
        interval: float = 0.2,
    ) -> None:
        """`work` is given up to `batch` items, at the latest `interval` seconds after they came."""
        self._work = work
        self._capacity = capacity
        self._batch = batch
        self._interval = interval
        self._items: deque[T] = deque()
        self._wake = threading.Event()
        self._ending = False
        self._doing = 0
        self.dropped = 0
        self._busy = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        items = self._items
        if len(items) >= self._capacity:
            self.dropped += 1
            return
        items.append(item)
        if len(items) >= self._batch:
            self._wake.set()

    def flush(self) -> None:
        """Hand on what has come so far, in this thread."""
        with self._busy:
            while self._items:
                self._step()

    def close(self, timeout: float = 3.0) -> None:
        """Hand on what has come; what takes longer than `timeout` seconds is given up."""
        self._ending = True
        self._wake.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            given_up = len(self._items) + self._doing
            self.dropped += given_up
            log.warning("%s: %d items were given up", self._thread.name, given_up)

    def _run(self) -> None:
        while not self._ending:
            self._wake.wait(self._interval)
            self._wake.clear()
            with self._busy:
                while self._items:
                    self._step()
        self.flush()

    def _step(self) -> None:
        taken = [self._items.popleft() for _ in range(min(len(self._items), self._batch))]
        self._doing = len(taken)
        try:
            self._work(taken)
        except Exception as error:  # its message may quote what is in the items
            self.dropped += len(taken)
            log.warning("%s: %d items are lost: %s", self._thread.name, len(taken), type(error).__name__)
            time.sleep(self._interval)
        self._doing = 0
