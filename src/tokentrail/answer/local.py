"""Answers from an engine process on this machine."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from tokentrail.answer.admission import Admission, AnswerSequence, Desk
from tokentrail.answer.parts import TextParts, load_text_parts
from tokentrail.answer.prompts import size
from tokentrail.answer.types import AnswerRequest, Chunk, ModelCard
from tokentrail.journey import JourneyStore
from tokentrail.observability import Metrics
from tokentrail.protocol import Delta, EngineInfo, EngineStats, GenerateRequest, Overloaded, StepRecord

__all__ = ["Engine", "LocalAnswer", "LocalBackend", "TextParts", "load_text_parts"]

# Characters of prompt from which tokenizing may hold up other streams, and goes to a thread.
_LONG = 20_000


class Engine(Protocol):
    """What is needed of an engine: `engine.client.EngineClient` has it, and tests bring their own."""

    restarts: int

    @property
    def info(self) -> EngineInfo: ...

    @property
    def alive(self) -> bool: ...

    @property
    def stats(self) -> EngineStats: ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]: ...

    def add_step_listener(self, listener: Callable[[StepRecord, list[Delta]], None]) -> None: ...

    def add_restart_listener(self, listener: Callable[[], None]) -> None: ...


class LocalBackend:
    """Template → tokens → engine → text, for one model. See `answer.backend.Backend`."""

    def __init__(
        self,
        engine: Engine,
        parts: TextParts,
        *,
        names: Sequence[str] = (),
        journeys: JourneyStore | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`names`: those the model answers to; none: the one in its file."""
        self.engine = engine
        self.journeys = JourneyStore() if journeys is None else journeys
        self.metrics = Metrics() if metrics is None else metrics
        self.desk = Desk(parts, self.journeys, self.metrics)
        created = int(time.time())
        self._cards = [
            ModelCard(id=name, created=created, max_model_len=engine.info.max_model_len, root=parts.name)
            for name in names or (parts.name,)
        ]
        self.metrics.before_scrape.append(self._refresh_metrics)
        engine.add_step_listener(self.journeys.on_step)
        engine.add_restart_listener(self.journeys.on_restart)

    @property
    def ready(self) -> bool:
        return self.engine.alive

    def models(self) -> list[ModelCard]:
        return self._cards

    async def open(self, request: AnswerRequest) -> LocalAnswer:
        if request.received is None:
            request.received = time.time()
        info = self.engine.info
        self.desk.check(request, info)
        if size(request.prompts) < _LONG:
            prepared = self.desk.prepare(request, info)
        else:
            prepared = await asyncio.get_running_loop().run_in_executor(
                None, self.desk.prepare, request, info
            )
        return LocalAnswer(self.engine, self.desk.admit(request, prepared, info))

    def _refresh_metrics(self) -> None:
        self.metrics.info = self.engine.info
        self.metrics.engine_up = self.engine.alive
        self.metrics.engine_restarts = self.engine.restarts
        self.metrics.stats = self.engine.stats


class LocalAnswer:
    """See `answer.backend.Answer`."""

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self.id = admission.request.id
        self.model = admission.request.model
        self.created = int(admission.journey.received)
        self.seed = admission.seed
        self.fingerprint = engine.info.fingerprint
        self.prompt_token_ids = admission.prompt_token_ids
        self.usage = admission.usage
        self.num_choices = len(admission.sequences)
        self._engine = engine
        self._admission = admission
        self._chunks = self._run()

    def __aiter__(self) -> AsyncIterator[list[Chunk]]:
        return self._chunks

    async def aclose(self) -> None:
        """Stop: the engine is told at once to end what still runs."""
        await self._chunks.aclose()
        self._admission.end("abort")

    def sent(self, seconds: float) -> None:
        self._admission.journey.send_seconds += seconds

    async def _run(self) -> AsyncGenerator[list[Chunk], None]:
        admission = self._admission
        outcome = "error"
        try:
            if len(admission.sequences) == 1:
                chunks = self._run_one(admission.sequences[0])
            else:
                chunks = self._run_many(admission.sequences)
            try:
                async for chunk in chunks:
                    yield chunk
            finally:
                await chunks.aclose()
            outcome = admission.outcome
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "abort"
            raise
        except Overloaded:
            outcome = "rejected"
            raise
        finally:
            admission.end(outcome)

    async def _run_one(self, sequence: AnswerSequence) -> AsyncGenerator[list[Chunk], None]:
        deltas: Any = self._engine.generate(sequence.request)
        write = self._admission.write
        try:
            async for delta in deltas:
                yield [write(sequence, delta)]
                if sequence.writer.finish_reason is not None:
                    return
        finally:
            # Ends the sequence in the engine, if it does not know yet that it is over.
            await deltas.aclose()

    async def _run_many(self, sequences: Sequence[AnswerSequence]) -> AsyncGenerator[list[Chunk], None]:
        """All sequences at once; a batch holds what came in the meantime."""
        ready: deque[Chunk | Exception] = deque()
        wake = asyncio.Event()

        async def pump(sequence: AnswerSequence) -> None:
            try:
                async for (chunk,) in self._run_one(sequence):
                    ready.append(chunk)
                    wake.set()
            except Exception as error:
                ready.append(error)
                wake.set()

        tasks = [asyncio.create_task(pump(sequence)) for sequence in sequences]
        running = len(tasks)
        try:
            while running:
                await wake.wait()
                wake.clear()
                batch: list[Chunk] = []
                while ready:
                    item = ready.popleft()
                    if isinstance(item, Exception):
                        raise item
                    running -= item.finish_reason is not None
                    batch.append(item)
                if batch:
                    yield batch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
