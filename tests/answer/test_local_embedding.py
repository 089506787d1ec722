"""Lists of inputs before an engine whose queue is short."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from scripted_engine import engine_info, scripted_vector

from tokentrail.answer import EmbeddingRequest, TokensPrompt
from tokentrail.answer.admission import Desk
from tokentrail.answer.embedding import EmbeddingJob, prepare_embedding
from tokentrail.answer.local_embedding import compute
from tokentrail.answer.parts import TextParts, load_text_parts
from tokentrail.journey import JourneyStore
from tokentrail.observability import Metrics
from tokentrail.protocol import (
    Delta,
    EngineDead,
    Finish,
    FinishReason,
    GenerateRequest,
    Overloaded,
    TokentrailError,
)


class ShortQueue:
    """Takes `room` requests at a time, and refuses others a moment later."""

    def __init__(self, room: int, *, error: TokentrailError | None = None) -> None:
        self.info = engine_info()
        self.room = room
        self.error = error
        self.open: set[str] = set()
        self.refused = 0
        self.dropped: list[str] = []

    def submit(
        self, request: GenerateRequest, sink: Callable[[Delta | TokentrailError], None]
    ) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        live = True

        def answer() -> None:
            if not live:
                return
            if self.error is not None and len(self.dropped) > 3:
                sink(self.error)
                return
            finish = Finish(FinishReason.STOP, embedding=scripted_vector(request))
            sink(Delta(request.id, [], [], finish=finish))

        def drop() -> None:
            nonlocal live
            live = False
            self.open.discard(request.id)
            self.dropped.append(request.id)

        if len(self.open) >= self.room:
            self.refused += 1
            loop.call_soon(lambda: sink(Overloaded("full")) if live else None)
        else:
            self.open.add(request.id)
            loop.call_later(0.002, answer)
        return drop


@pytest.fixture(scope="module")
def parts() -> TextParts:
    return load_text_parts(None)


def job(parts: TextParts, engine: Any, count: int) -> tuple[EmbeddingJob, Metrics]:
    metrics = Metrics()
    desk = Desk(parts, JourneyStore(), metrics)
    prompts: list[Any] = [TokensPrompt([5 + n]) for n in range(count)]
    request = EmbeddingRequest(id="e", prompts=prompts, model="m", endpoint="test")
    return EmbeddingJob(desk, request, prepare_embedding(desk, request, engine.info), engine.info), metrics


async def test_those_that_found_no_room_come_later(parts: TextParts) -> None:
    engine = ShortQueue(3)
    made, metrics = job(parts, engine, 40)
    result = await compute(engine, made)
    assert [array("f", vector)[2] for vector in result.vectors] == [5 + n for n in range(40)]
    assert engine.refused > 30
    assert not engine.open
    assert metrics.requests["stop"] == 1


async def test_where_none_finds_room_the_request_is_refused(parts: TextParts) -> None:
    engine = ShortQueue(0)
    made, metrics = job(parts, engine, 4)
    with pytest.raises(Overloaded):
        await compute(engine, made)
    assert metrics.requests["rejected"] == 1


async def test_an_error_ends_all(parts: TextParts) -> None:
    engine = ShortQueue(8, error=EngineDead("gone"))
    made, metrics = job(parts, engine, 40)
    with pytest.raises(EngineDead):
        await compute(engine, made)
    assert not engine.open
    assert metrics.requests["error"] == 1


async def test_cancelling_ends_all(parts: TextParts) -> None:
    engine = ShortQueue(8)
    made, metrics = job(parts, engine, 400)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(compute(engine, made), 0.01)
    assert not engine.open
    assert metrics.requests["abort"] == 1
