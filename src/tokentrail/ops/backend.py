"""What an implementation of the ops offers. `native` (C++) and `reference` (NumPy) are two; a GPU is a third."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokentrail.ops.program import Program

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
Stored = tuple[str, npt.NDArray[np.uint8], int, int]
"""A matrix as a file has it: format, bytes, rows, columns."""


KV_DTYPES = ("bfloat16", "int8", "float32")
"""How keys and values can be kept: rounded to bfloat16; as int8 with a scale (float32) per token and head, of keys and
of values; or as they are. Scales are written once, with their token, and never revised."""


@dataclass(frozen=True)
class KvLayout:
    """The paged KV cache: `blocks` blocks of `block_size` positions for every layer."""

    dtype: str
    """One of `KV_DTYPES`."""
    layers: int
    blocks: int
    block_size: int
    heads: int
    head_dim: int

    @property
    def bytes_per_token(self) -> int:
        head = {"bfloat16": 2 * self.head_dim, "int8": self.head_dim + 4, "float32": 4 * self.head_dim}
        return self.layers * 2 * self.heads * head[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.blocks * self.block_size * self.bytes_per_token


@dataclass(frozen=True)
class Limits:
    """The largest step a compiled program takes."""

    tokens: int
    sequences: int
    logit_rows: int


@dataclass(frozen=True)
class MatrixShape:
    """A weight matrix [n, k] as it would be packed: what a plan needs of one, without its values."""

    n: int
    k: int
    nbytes: int
    integer: bool
    """Whether products with it take int8 activations."""
    layout: str
    """The backend's name for how it is packed."""


class Executable(Protocol):
    """A program ready to run: buffers allocated, weights bound."""

    @property
    def nbytes(self) -> int:
        """Bytes of activations."""
        ...

    def forward(
        self,
        tokens: I32,
        positions: I32,
        row_starts: I32,
        block_tables: I32,
        logit_rows: I32,
        adapters: I32 | None = None,
        *,
        states: bool = False,
    ) -> F32:
        """Run a step (arrays as in `engine.batch.Batch`) → logits [L, vocab], valid until the next step.

        `states`: compute what `states` returns, too.
        """
        ...

    def states(self, tokens: int) -> F32:
        """Last hidden states [tokens, dim] of the latest step's tokens, valid until the next step."""
        ...

    def sample(
        self, logits: F32, top_width: int, **rows: npt.NDArray[Any] | None
    ) -> tuple[I32, F32, I32, F32]:
        """Sample rows of logits, which are overwritten → tokens [L], logprobs [L], and the `top_width` best
        alternatives: ids [L, K] (-1 where a row asked for fewer), logprobs [L, K]. `rows` are the arrays of
        `engine.batch.SamplingRows` by name. What is returned may be overwritten by the next call."""
        ...


class Backend(Protocol):
    name: str
    isa: str
    threads: int

    def is_integer(self, format: str) -> bool:
        """Whether products with weights of this format take int8 activations."""
        ...

    def matrix(self, format: str, data: npt.NDArray[np.uint8], n: int, k: int) -> Any:
        """Pack a stored matrix [n, k]."""
        ...

    def matrices(self, stored: Sequence[Stored]) -> list[Any]:
        """Pack several, side by side: faster than one by one where they are small."""
        ...

    def packed_bytes(self, format: str, n: int, k: int) -> int: ...

    def matrix_shape(self, format: str, n: int, k: int) -> MatrixShape:
        """What `matrix` would give, without the values."""
        ...

    def buffer_bytes(self, program: Program, kv: KvLayout, limits: Limits, vocab: int) -> int:
        """Bytes that `compile` would take for activations and scratch. The program's matrices may be `MatrixShape`s."""
        ...

    def rope_frequencies(self, dim: int, theta: float) -> tuple[float, ...]: ...

    def compile(
        self, program: Program, kv: KvLayout, limits: Limits, vocab: int, *, eager: bool = False
    ) -> Executable: ...
