"""Files that change while a server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Watch:
    """Looks now and then, in a thread, whether something has changed, and applies it."""

    def __init__(
        self, changed: Callable[[], bool], apply: Callable[[], None], *, interval: float = 2.0
    ) -> None:
        self._changed = changed
        self._apply = apply
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """On the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._interval)
            await loop.run_in_executor(None, self._look)

    def _look(self) -> None:
        try:
            if self._changed():
                self._apply()
        except Exception as error:
            log.error("a change is not applied: %s", error)
