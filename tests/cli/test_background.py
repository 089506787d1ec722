from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator

import pytest

from tokentrail.cli.background import Background


async def count(to: int, closed: list[int]) -> AsyncIterator[int]:
    try:
        for number in range(to):
            await asyncio.sleep(0)
            yield number
    finally:
        closed.append(to)


def test_streams_and_calls() -> None:
    async def where() -> str:
        return threading.current_thread().name

    closed: list[int] = []
    with Background() as background:
        assert background.call(where()) == "background-loop"
        assert list(background.stream(count(5, closed))) == [0, 1, 2, 3, 4]
        assert closed == [5]


def test_closing_the_iterator_cancels_the_source() -> None:
    cancelled = threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                await asyncio.sleep(0.01)
                yield 1
        finally:
            cancelled.set()

    with Background() as background:
        stream = background.stream(endless())
        assert next(stream) == 1
        stream.close()  # type: ignore[attr-defined]
        assert cancelled.is_set()


def test_errors_come_through() -> None:
    async def fails() -> AsyncIterator[int]:
        yield 1
        raise ValueError("no")

    with Background() as background:
        stream = background.stream(fails())
        assert next(stream) == 1
        with pytest.raises(ValueError, match="no"):
            next(stream)


def test_an_interrupt_while_waiting_cancels() -> None:
    ended = threading.Event()

    async def slow() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.sleep(30)
        finally:
            ended.set()

    with Background() as background:
        stream = background.stream(slow())
        assert next(stream) == 1
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        before = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert time.monotonic() - before < 5
        assert ended.wait(5)
