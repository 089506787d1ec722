"""Named weights as a backend holds them; what a forward pass asks for is packed when it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrail.ops.program import Linear


class Weights:
    """Weights under a name prefix.

    `matrix_of`, `vector_of` and `bias_of` map a full canonical name to a backend matrix, a float32 vector, and a
    float32 vector or None where the checkpoint has none. The first two raise for a name that the checkpoint lacks.
    """

    def __init__(
        self,
        matrix_of: Callable[[str], Any],
        vector_of: Callable[[str], npt.NDArray[np.float32]],
        bias_of: Callable[[str], npt.NDArray[np.float32] | None],
        prefix: str = "",
    ) -> None:
        self._matrix_of, self._vector_of, self._bias_of = matrix_of, vector_of, bias_of
        self._prefix = prefix

    def layer(self, index: int) -> Weights:
        return Weights(self._matrix_of, self._vector_of, self._bias_of, f"layers.{index}.")

    def matrix(self, name: str) -> Any:
        return self._matrix_of(self._prefix + name)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return self._vector_of(self._prefix + name)

    def linear(self, name: str) -> Linear:
        return Linear(self.matrix(name), self._bias_of(f"{self._prefix}{name}.bias"))
