"""The engine in the caller's own process, for scripts: the same core, without sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokentrail.engine.batch import Runner
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.core import EngineCore
from tokentrail.engine.loading import create_runner
from tokentrail.engine.rejection import error_of
from tokentrail.protocol import EngineInfo, EngineStats, GenerateRequest, StepOutput


class LocalEngine:
    """Synchronous: `generate` computes as its iterator is advanced. One generation at a time."""

    def __init__(self, config: EngineConfig, *, runner: Runner | str | None = None) -> None:
        """`runner`: a runner, or `module:callable` that makes one; None: see `loading.create_runner`.

        Raises `ModelFileError`, `CapacityError` and the like where the model cannot be loaded.
        """
        if runner is None or isinstance(runner, str):
            runner = create_runner(config, runner)
        self._core = EngineCore(config, runner)
        self._max_pending = max(config.max_waiting, 1)
        self._generating = False

    @property
    def info(self) -> EngineInfo:
        return self._core.runner.info

    @property
    def stats(self) -> EngineStats:
        return self._core.stats()

    def generate(self, requests: Iterable[GenerateRequest]) -> Iterator[StepOutput]:
        """Run the requests to their end, yielding what each step brought. Closing the iterator aborts the
        rest.

        Any number of requests: they are fed as the waiting queue has room. Raises the error of the first that
        is refused, and aborts the others.
        """
        if self._generating:
            raise RuntimeError("this engine is already generating; advance or close that iterator first")
        self._generating = True
        core = self._core
        feed = iter(requests)
        more = True
        open_ids: set[str] = set()
        try:
            while more or core.has_work:
                while more and core.scheduler.num_waiting < self._max_pending:
                    request = next(feed, None)
                    if request is None:
                        more = False
                        break
                    rejected = core.add_request(request)
                    if rejected is not None:
                        raise error_of(rejected)
                    open_ids.add(request.id)
                output = core.step()
                if core.refused:
                    error = error_of(core.refused[0])
                    core.refused.clear()
                    raise error
                if output is None:
                    continue
                open_ids.difference_update(delta.id for delta in output.deltas if delta.finish is not None)
                yield output
        finally:
            core.abort(open_ids)
            self._generating = False

    def abort(self, ids: Iterable[str]) -> None:
        """End these sequences, between two steps of `generate`. Nothing more comes of them."""
        self._core.abort(ids)

    def close(self) -> None:
        """Free the model. The engine cannot be used afterwards."""
        self._core.close()
