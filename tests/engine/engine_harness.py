"""An engine over the fake model for tests, and drafts of any length."""

from __future__ import annotations

import random
from collections import defaultdict

from engine_fakes import FakeRunner, expect

from schedules import Answer
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.core import EngineCore
from tokentrail.engine.sequence import Status
from tokentrail.engine.speculation import Lengths
from tokentrail.protocol import Delta, Finish, GenerateRequest, StepOutput


class RandomLengths(Lengths):
    """Drafts as many tokens as chance has it, whether it pays or not."""

    def __init__(self, longest: int, seed: int | None = None) -> None:
        """`seed` None: always the longest draft."""
        super().__init__(64, longest)
        self._random = None if seed is None else random.Random(seed)

    def choose(self, slots: list[int], most: list[int], sequences: int, pass_seconds: float) -> list[int]:
        return most if self._random is None else [self._random.randint(0, room) for room in most]


class Harness:
    """An engine over the fake model that checks its books at every step."""

    def __init__(self, **config: object) -> None:
        settings: dict = {
            "block_size": 4,
            "max_model_len": 96,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 32,
        }
        self.config = EngineConfig(**{**settings, **config})
        self.runner = FakeRunner(self.config)
        self.core = EngineCore(self.config, self.runner)
        self.answers: defaultdict[str, Answer] = defaultdict(Answer)
        self.finishes: dict[str, Finish] = {}
        self.first: dict[str, Delta] = {}
        self.outputs: list[StepOutput] = []
        self._execute = self.runner.execute
        self.runner.execute = self._check_writes  # type: ignore[method-assign]

    def _check_writes(self, batch):
        pool, size = self.core.pool, self.config.block_size
        for index in range(len(batch.row_starts) - 1):
            rows = slice(batch.row_starts[index], batch.row_starts[index + 1])
            for position in batch.positions[rows]:
                block = batch.block_tables[index, position // size]
                assert pool.refs(block) == 1, "a shared block is written"
                assert pool.hash_of(block) is None, "a block that others may find is written"
        return self._execute(batch)

    def check(self) -> None:
        core = self.core
        running = core.scheduler.running
        core.pool.check(sequence.blocks for sequence in running)
        assert [s.rank for s in running] == sorted(s.rank for s in running)
        assert len({s.slot for s in running}) == len(running)
        for sequence in core._sequences.values():
            assert (sequence.status is Status.RUNNING) == (sequence in running)
            assert sequence.num_computed <= len(sequence.blocks) * self.config.block_size
        waiting = sum(s.status is Status.WAITING for s in core._sequences.values())
        assert core.scheduler.num_waiting == waiting

    def add(self, item: GenerateRequest):
        return self.core.add_request(item)

    def step(self) -> StepOutput | None:
        output = self.core.step()
        self.check()
        if output is None:
            return None
        self.outputs.append(output)
        for delta in output.deltas:
            assert delta.id not in self.finishes, "a delta after the last one"
            self.answers[delta.id].take(delta, first=delta.id not in self.first)
            self.first.setdefault(delta.id, delta)
            if delta.finish is not None:
                self.finishes[delta.id] = delta.finish
        return output

    def run(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            if not self.core.has_work:
                break
            self.step()
        assert not self.core.has_work, "the engine does not come to an end"
        assert self.core.pool.num_free == self.core.pool.num_blocks

    def expect(self, item: GenerateRequest) -> Answer:
        return expect(item, self.runner.info.max_model_len)
