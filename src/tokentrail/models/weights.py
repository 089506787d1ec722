"""Named weights as a backend holds them; what a forward pass asks for is packed when it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrail.ops.program import Linear, LowRank

Adapters = tuple[LowRank | None, ...]


class Weights:
    """Weights under a name prefix.

    `matrix_of`, `vector_of` and `bias_of` map a full canonical name to a backend matrix, a float32 vector, and a
    float32 vector or None where the checkpoint has none; `columns_of` that of a matrix to the order of its columns, or
    None where they are in order; `adapters_of` that of a linear layer to what adapters add to it. The first two raise
    for a name that the checkpoint lacks.
    """

    def __init__(
        self,
        matrix_of: Callable[[str], Any],
        vector_of: Callable[[str], npt.NDArray[np.float32]],
        bias_of: Callable[[str], npt.NDArray[np.float32] | None],
        columns_of: Callable[[str], npt.NDArray[np.int32] | None] = lambda name: None,
        adapters_of: Callable[[str], Adapters] = lambda name: (),
        prefix: str = "",
    ) -> None:
        self._matrix_of, self._vector_of, self._bias_of = matrix_of, vector_of, bias_of
        self._columns_of, self._adapters_of, self._prefix = columns_of, adapters_of, prefix

    def layer(self, index: int) -> Weights:
        return self._under(f"layers.{index}.")

    def part(self, name: str) -> Weights:
        """Those whose names begin with `name.`."""
        return self._under(f"{self._prefix}{name}.")

    def _under(self, prefix: str) -> Weights:
        sources = (self._matrix_of, self._vector_of, self._bias_of, self._columns_of, self._adapters_of)
        return Weights(*sources, prefix)

    def matrix(self, name: str) -> Any:
        return self._matrix_of(self._prefix + name)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return self._vector_of(self._prefix + name)

    def optional_vector(self, name: str) -> npt.NDArray[np.float32] | None:
        """None where the checkpoint has none."""
        return self._bias_of(self._prefix + name)

    def linear(self, name: str) -> Linear:
        name = self._prefix + name
        bias = self._bias_of(f"{name}.bias")
        return Linear(self._matrix_of(name), bias, self._columns_of(name), self._adapters_of(name))
