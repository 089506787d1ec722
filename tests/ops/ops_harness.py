"""Runs the same recorded program on the native backend and on the reference.

Inputs are fed through the op set itself: `feed` records an embedding of a float32 table whose row t belongs to token
id t. So a program gets any numbers as activations, without a door that only tests use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from random_models import store
from tokentrail.checkpoints import dequantize
from tokentrail.ops.backend import Backend, Executable, KvLayout, Limits
from tokentrail.ops.native import NativeBackend, available_isas
from tokentrail.ops.program import Recorder, Value
from tokentrail.ops.reference import ReferenceBackend

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

ISAS = available_isas()
INTEGER_FORMATS = ("Q4_0", "Q4_1", "Q8_0")
FLOAT_FORMATS = ("BF16", "F16", "F32")
FORMATS = INTEGER_FORMATS + FLOAT_FORMATS
EPS = 2.0**-24
"""Half a unit in the last place of float32: the relative error of one rounding."""

Record = Callable[[Backend, Recorder], Value]
"""Records a program and returns the value to look at."""


@cache
def native(isa: str, threads: int = 1) -> NativeBackend:
    return NativeBackend(threads, isa)


@cache
def reference() -> ReferenceBackend:
    return ReferenceBackend(dequantize)


def matrix(backend: Backend, values: F32, format: str = "F32") -> Any:
    return backend.matrix(format, store(values, format), *values.shape)


def feed(backend: Backend, ops: Recorder, rows: F32) -> Value:
    """An activation whose row is `rows[token id]`."""
    return ops.embedding(matrix(backend, rows), dim=rows.shape[1])


@dataclass
class Run:
    """A sequence's share of a step: tokens at consecutive positions, and the blocks that hold them."""

    tokens: Sequence[int]
    start: int = 0
    blocks: Sequence[int] = (0,)


@dataclass
class Step:
    """Sequences computed together. `logits`: rows whose logits are wanted; None: all."""

    runs: list[Run]
    logits: Sequence[int] | None = None

    def arrays(self) -> tuple[I32, I32, I32, I32, I32]:
        def array(values: Any) -> I32:
            return np.array(values, np.int32)

        width = max(len(run.blocks) for run in self.runs)
        counts = [len(run.tokens) for run in self.runs]
        tokens = array([token for run in self.runs for token in run.tokens])
        return (
            tokens,
            array([run.start + i for run in self.runs for i in range(len(run.tokens))]),
            array(np.concatenate([[0], np.cumsum(counts)])),
            array([[*run.blocks, *[0] * (width - len(run.blocks))] for run in self.runs]),
            array(range(len(tokens)) if self.logits is None else self.logits),
        )


def rows_step(count: int) -> Step:
    """Rows 0 … count-1 of every fed table, as one sequence."""
    return Step([Run(range(count), 0, [0] * (count // 16 + 1))])


@dataclass
class Harness:
    """What all programs of one test share."""

    record: Record
    vocab: int
    kv: KvLayout = field(default_factory=lambda: KvLayout("float32", 1, 1, 16, 1, 16))
    limits: Limits = field(default_factory=lambda: Limits(512, 64, 512))

    def compile(self, backend: Backend, *, eager: bool = False) -> Executable:
        ops = Recorder()
        value = self.record(backend, ops)
        # Only a value with rows of tokens needs gathering; the gather itself is then part of every test.
        program = ops.finish(value if value.rows == "logits" else ops.logit_rows(value))
        return backend.compile(program, self.kv, self.limits, self.vocab, eager=eager)


def forward(executable: Executable, step: Step) -> F32:
    """Logits of a step, copied."""
    return executable.forward(*step.arrays()).copy()


def bits(values: F32) -> npt.NDArray[np.uint32]:
    """The bits of floats: equal numbers are not enough, and NaN must equal itself."""
    return np.ascontiguousarray(values).view(np.uint32)


def assert_within(got: F32, expected: F64, bound: F64 | float, what: str) -> None:
    """|got - expected| ≤ bound, element by element; says where it is worst."""
    error = np.abs(got.astype(np.float64) - expected)
    bound = np.broadcast_to(np.asarray(bound, np.float64), error.shape)
    excess = np.where(np.isnan(error), np.inf, error) - bound
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    assert excess[worst] <= 0, (
        f"{what}: at {tuple(int(i) for i in worst)} {got[worst]} is not {expected[worst]} ± {bound[worst]:.3g}"
    )
