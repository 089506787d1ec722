"""Single steps of a model, run again and again: what they take, and what they had to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tokentrail.cli.bench.report import FIRST_RANDOM_ID
from tokentrail.ops.native.machine import PEAK_OF_KV, Machine, peak_of_layout

if TYPE_CHECKING:
    from tokentrail.checkpoints import Checkpoint
    from tokentrail.engine.batch import Batch
    from tokentrail.engine.model_runner import ModelRunner


@dataclass(frozen=True)
class StepShape:
    """A step of `sequences` sequences that bring `tokens` new tokens each, behind `context` tokens in the cache."""

    name: str
    sequences: int
    tokens: int
    context: int


@dataclass
class Work:
    """Time, and what had to be done in it: bytes of weights and KV cache read, multiply–accumulates by kind."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: float = 0.0
    macs: dict[str, float] = field(default_factory=dict)

    def add(self, seconds: float, nbytes: float, macs: float, peak: str) -> None:
        self.calls += 1
        self.seconds += seconds
        self.nbytes += nbytes
        if macs:
            self.macs[peak] = self.macs.get(peak, 0.0) + macs

    @property
    def total_macs(self) -> float:
        return sum(self.macs.values())

    def least(self, machine: Machine) -> tuple[float, str]:
        """Seconds that the machine needs for it at best, and what sets them: "memory" or a kind of product."""
        return machine.least(self.nbytes, self.macs)


@dataclass
class StepResult:
    shape: StepShape
    seconds: float
    """Median of whole steps: forward pass and sampling."""
    sampling: float
    whole: Work
    ops: dict[str, Work]
    """By kind of call, timed with all threads meeting after each: together a little more than the whole."""


def step_weight_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of the file's tensors that a step of one token reads: all but the embedding table, where it is not the
    output's too, and but the experts that are not chosen.
    """
    moe = checkpoint.config.moe
    chosen = moe.experts_per_token / moe.num_experts if moe else 0.0
    return _weight_bytes(checkpoint) + round(chosen * _weight_bytes(checkpoint, experts=True))


def _weight_bytes(checkpoint: Checkpoint, *, experts: bool = False) -> int:
    """Of the experts, or of all else that every step reads."""
    skipped = () if checkpoint.config.tie_embeddings else ("embed",)
    return sum(
        tensor.nbytes
        for name, tensor in checkpoint.tensors.items()
        if name not in skipped and (".experts." in name) == experts
    )


def kv_bytes_read(shape: StepShape, bytes_per_token: int) -> int:
    """Bytes of keys and values that a step reads, each once."""
    return shape.sequences * (shape.context + shape.tokens) * bytes_per_token


class StepBench:
    """Runs steps on a loaded model, without a scheduler. Sequence s owns the s-th run of blocks."""

    def __init__(self, runner: ModelRunner, checkpoint: Checkpoint, kv_dtype: str) -> None:
        self.runner, self.checkpoint = runner, checkpoint
        self.kv_peak = PEAK_OF_KV["bfloat16" if kv_dtype == "auto" else kv_dtype]
        self._rng = np.random.default_rng(0)

    def measure(self, shape: StepShape, *, seconds: float = 1.0) -> StepResult:
        """Fill the cache, then run the step for about `seconds`: half of them as always, half timed call by call."""
        self._fill(shape)
        batch = self._batch(shape.sequences, shape.tokens, shape.context)
        self.runner.execute(batch)
        times: list[float] = []
        samplings: list[float] = []
        end = time.perf_counter() + seconds / 2
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            sampled = self.runner.execute(batch)
            times.append(time.perf_counter() - start)
            samplings.append(sampled.sample_seconds)
        program = self.runner.executable.program
        runs = max(3, len(times))
        program.set_timing(True)
        for _ in range(runs):
            self.runner.execute(batch)
        timings = program.timings()
        program.set_timing(False)
        ops: dict[str, Work] = {}
        for call in timings:
            if call.seconds:
                rows = shape.sequences if call.logit_rows else shape.sequences * shape.tokens
                work = ops.setdefault(call.name, Work())
                peak = peak_of_layout(call.layout)
                work.add(call.seconds / runs, call.weight_bytes, call.macs_per_row * rows, peak)
        kv_bytes = kv_bytes_read(shape, self.runner.info.kv_bytes_per_token)
        attention = ops["attention"]
        attention.nbytes = kv_bytes
        attention.macs = {self.kv_peak: self._attention_macs(shape)}
        experts_read = sum(work.nbytes for name, work in ops.items() if name.startswith("experts"))
        whole = Work(
            seconds=statistics.median(times),
            nbytes=_weight_bytes(self.checkpoint) + experts_read + kv_bytes,
        )
        for work in ops.values():
            for peak, macs in work.macs.items():
                whole.macs[peak] = whole.macs.get(peak, 0.0) + macs
        return StepResult(shape, whole.seconds, statistics.median(samplings), whole, ops)

    def _attention_macs(self, shape: StepShape) -> float:
        """Scores and weighted sums: 2 · head_dim for each query head and position that it sees."""
        config = self.checkpoint.config
        seen = 0
        for layer in range(config.num_layers):
            window = config.window(layer) or shape.context + shape.tokens
            seen += sum(min(shape.context + t + 1, window) for t in range(shape.tokens))
        return 2.0 * shape.sequences * seen * config.num_heads * config.head_dim

    def _fill(self, shape: StepShape) -> None:
        """Put `context` tokens of every sequence into the cache, in chunks."""
        budget = self.runner.info.max_num_batched_tokens
        for sequence in range(shape.sequences):
            for start in range(0, shape.context, budget):
                tokens = min(budget, shape.context - start)
                self.runner.execute(self._batch(1, tokens, start, first=sequence, blocks=self._blocks(shape)))

    def _blocks(self, shape: StepShape) -> int:
        return -(-(shape.context + shape.tokens) // self.runner.info.block_size)

    def _batch(
        self, sequences: int, tokens: int, start: int, *, first: int = 0, blocks: int | None = None
    ) -> Batch:
        from tokentrail.engine.batch import Batch, SamplingRows

        info = self.runner.info
        blocks = -(-(start + tokens) // info.block_size) if blocks is None else blocks
        ids = np.arange(first * blocks, (first + sequences) * blocks, dtype=np.int32)
        return Batch(
            tokens=self._rng.integers(
                min(FIRST_RANDOM_ID, info.vocab_size - 1), info.vocab_size, sequences * tokens, np.int32
            ),
            positions=np.tile(np.arange(start, start + tokens, dtype=np.int32), sequences),
            row_starts=np.arange(0, (sequences + 1) * tokens, tokens, dtype=np.int32),
            block_tables=ids.reshape(sequences, blocks),
            logit_rows=np.arange(tokens - 1, sequences * tokens, tokens, dtype=np.int32),
            sampling=SamplingRows.greedy(sequences, position=np.full(sequences, start + tokens, np.int32)),
        )


def blocks_needed(shapes: Iterable[StepShape], block_size: int) -> int:
    return max(shape.sequences * -(-(shape.context + shape.tokens) // block_size) for shape in shapes)
