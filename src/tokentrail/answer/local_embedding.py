"""Drives an embedding job through an engine of another process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tokentrail.answer.embedding import EmbeddingJob, Embeddings, window
from tokentrail.protocol import Delta, EngineInfo, GenerateRequest, Overloaded, TokentrailError


class Engine(Protocol):
    """See `answer.local.Engine`."""

    @property
    def info(self) -> EngineInfo: ...

    def submit(
        self, request: GenerateRequest, sink: Callable[[Delta | TokentrailError], None]
    ) -> Callable[[], None]: ...


async def compute(engine: Engine, job: EmbeddingJob) -> Embeddings:
    """Give the engine the job's sequences, a window of them at a time, until all have their vectors.

    One that the queue has no room for waits until another of the job's has ended; only where there is none the request
    is refused with `Overloaded`. Cancelling it, or an error, ends all of them.
    """
    outcome = "error"
    running: dict[int, Callable[[], None]] = {}
    waiting = deque(range(len(job.sequences)))
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    most = window(engine.info, len(job.sequences))

    def submit() -> None:
        while waiting and len(running) < most:
            index = waiting.popleft()

            def sink(item: Delta | TokentrailError, index: int = index) -> None:
                take(index, item)

            running[index] = engine.submit(job.sequences[index], sink)

    def take(index: int, item: Delta | TokentrailError) -> None:
        if over.done() or index not in running:
            return
        try:
            if isinstance(item, Overloaded) and len(running) > 1:
                running.pop(index)()
                waiting.appendleft(index)
                return
            if isinstance(item, TokentrailError):
                raise item
            if job.take(index, item):
                running.pop(index)()
                submit()
                if not running:
                    over.set_result(None)
        except Exception as error:
            over.set_exception(error)

    try:
        submit()
        await over
        outcome = "stop"
        return job.result()
    except asyncio.CancelledError:
        outcome = "abort"
        raise
    except Overloaded:
        outcome = "rejected"
        raise
    finally:
        for drop in running.values():
            drop()
        job.end(outcome)
