"""An asyncio loop in a thread of its own, so that the main thread may wait for the keyboard.

Ctrl-C then reaches the main thread, wherever it waits, and the loop (with the engine's client in it) goes on.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


class Background:
    """Use as a context manager: the loop runs from entry to exit."""

    def __enter__(self) -> Background:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="background-loop", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call(self._cancel_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_tasks(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and wait for its result; an interrupt of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stream(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over `source`, which runs in the loop. Closing the iterator or an interrupt cancels it."""
        items: queue.SimpleQueue[Any] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async for item in source:
                    items.put(item)
            finally:
                items.put(_END)

        future = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while (item := items.get()) is not _END:
                yield item
            future.result()
        finally:
            if future.cancel():
                # The source ends on its own time; nothing may start before it has let go of what it holds.
                while items.get() is not _END:
                    pass
