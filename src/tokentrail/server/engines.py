"""The models that a server runs itself: their engine processes, started and ended together, and their texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

# Only what is needed to start engine processes; see `run`.
from tokentrail.engine.client import EngineClient
from tokentrail.server.config import ServedModel, ServerConfig

if TYPE_CHECKING:
    from tokentrail.answer import Backend
    from tokentrail.answer.local import LocalBackend
    from tokentrail.answer.parts import TextParts
    from tokentrail.engine.replicas import ReplicaSet
    from tokentrail.journey import JourneyStore
    from tokentrail.observability import Metrics

Progress = Callable[[int, int], None]


class RunningModel:
    """One of them."""

    def __init__(self, served: ServedModel, runner: str | None) -> None:
        self.served = served
        self.backend: LocalBackend | None = None
        self.parts: TextParts | None = None
        self.engine: EngineClient | ReplicaSet
        if served.cores:
            from tokentrail.engine.replicas import ReplicaSet

            self.engine = ReplicaSet(served.engine, served.cores, runner=runner)
        else:
            self.engine = EngineClient(served.engine, runner=runner)

    def load_text(self) -> None:
        from tokentrail.answer.parts import load_text_parts

        served = self.served
        self.parts = load_text_parts(
            served.engine.model,
            served.chat_template,
            name=served.engine.name,
            generation_config=served.generation_config,
            tool_call_parser=served.tool_call_parser,
            reasoning_parser=served.reasoning_parser,
            pooling=served.pooling,
        )


class Engines:
    """All of them."""

    def __init__(self, config: ServerConfig, *, runner: str | None = None) -> None:
        """`runner`: as `EngineClient` takes it."""
        served = (_only(config),) if config.models is None else config.models
        self.models = [RunningModel(one, runner) for one in _share_memory(served)]
        self._runner = runner

    async def start(self, progress: Progress | None = None) -> None:
        """Start all engine processes. Raises what kept one from starting."""
        told: dict[int, tuple[int, int]] = {}

        def tell(number: int, done: int, total: int) -> None:
            told[number] = done, total
            if progress is not None:
                progress(sum(one for one, _ in told.values()), sum(one for _, one in told.values()))

        def teller(number: int) -> Progress:
            return lambda done, total: tell(number, done, total)

        starting = [
            asyncio.ensure_future(model.engine.start(teller(number)))
            for number, model in enumerate(self.models)
        ]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            if starting:
                await asyncio.wait(starting)

    def load_texts(self) -> None:
        """In a thread, while the engines load. Raises `TokentrailError`."""
        for model in self.models:
            model.load_text()

    def backends(self, journeys: JourneyStore, metrics: Metrics) -> dict[str, LocalBackend]:
        """By the models' main names; once they have started and their texts are loaded."""
        from tokentrail.answer.local import LocalBackend

        found: dict[str, LocalBackend] = {}
        for model in self.models:
            assert model.parts is not None
            # The first one's numbers are the server's own.
            own = metrics if not found else metrics.beside()
            backend = LocalBackend(
                model.engine, model.parts, names=model.served.names, journeys=journeys, metrics=own
            )
            name = own.model_name = backend.models()[0].id
            found[name] = model.backend = backend
        return found

    async def add(self, served: ServedModel, journeys: JourneyStore, metrics: Metrics) -> LocalBackend:
        """Start a further one, while others answer. Raises what keeps it from starting."""
        from tokentrail.answer.local import LocalBackend

        model = RunningModel(served, self._runner)
        self.models.append(model)  # it ends with the server, however far it is
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, model.load_text)
            await model.engine.start(None)
        except BaseException:
            self.models.remove(model)
            await model.engine.close()
            raise
        assert model.parts is not None
        own = metrics.of_engine(served.names[0])
        backend = model.backend = LocalBackend(
            model.engine, model.parts, names=served.names, journeys=journeys, metrics=own
        )
        return backend

    async def remove(self, backend: Backend) -> None:
        """End one whose answers have ended."""
        model = next((one for one in self.models if one.backend is backend), None)
        if model is None or model.backend is None:
            return
        self.models.remove(model)
        await model.engine.close()
        metrics = model.backend.metrics
        others = [one.backend for one in self.models if one.backend is not None]
        same = [one for one in others if one.metrics is metrics]
        metrics.forget_engine()
        if same:  # another engine of that name
            metrics.has_engine = True
            same[-1].tell_metrics()

    async def close(self) -> None:
        if self.models:
            await asyncio.gather(*(model.engine.close() for model in self.models))


def _only(config: ServerConfig) -> ServedModel:
    """The one that the command line describes."""
    return ServedModel(
        names=config.served_model_names,
        engine=config.engine,
        chat_template=config.chat_template,
        generation_config=config.generation_config,
        tool_call_parser=config.tool_call_parser,
        reasoning_parser=config.reasoning_parser,
        pooling=config.pooling,
    )


def _share_memory(served: tuple[ServedModel, ...]) -> list[ServedModel]:
    """All look at the memory that is free at about the same time: each of those that size their cache by it gets its
    part.
    """
    open_ended = [one for one in served if one.engine.kv_cache_memory is None]
    count = sum(max(1, len(one.cores)) for one in open_ended)
    if count < 2:
        return list(served)
    shared: list[ServedModel] = []
    for one in served:
        engine = one.engine
        if engine.kv_cache_memory is None:
            engine = msgspec.structs.replace(engine, memory_utilization=engine.memory_utilization / count)
        shared.append(msgspec.structs.replace(one, engine=engine))
    return shared
