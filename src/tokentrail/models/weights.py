"""Named weights as a backend holds them; what a forward pass asks for is packed when it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrail.ops.program import Linear


class Weights:
    """Weights under a name prefix.

    `matrix_of` and `vector_of` map a full canonical name to a backend matrix, or to a float32 vector; the latter gives
    None for a vector that the checkpoint lacks.
    """

    def __init__(
        self,
        matrix_of: Callable[[str], Any],
        vector_of: Callable[[str], npt.NDArray[np.float32] | None],
        prefix: str = "",
    ) -> None:
        self._matrix_of, self._vector_of, self._prefix = matrix_of, vector_of, prefix

    def layer(self, index: int) -> Weights:
        return Weights(self._matrix_of, self._vector_of, f"layers.{index}.")

    def matrix(self, name: str) -> Any:
        return self._matrix_of(self._prefix + name)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        vector = self._vector_of(self._prefix + name)
        if vector is None:
            raise KeyError(self._prefix + name)
        return vector

    def linear(self, name: str) -> Linear:
        return Linear(self.matrix(name), self._vector_of(f"{self._prefix}{name}.bias"))
