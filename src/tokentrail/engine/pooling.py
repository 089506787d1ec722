"""From a prompt's hidden states to one vector, whichever way the prompt was cut into steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokentrail.protocol import Pooling

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Pool:
    """One prompt's states as they come, in ascending order of positions.

    A mean is a sum in float64, one position after the other, so neither the prompt's chunks nor its company in a batch
    change a bit of it. What was taken stays when the sequence is preempted and its prompt computed again.
    """

    __slots__ = ("_length", "_pooling", "_taken", "_total")

    def __init__(self, pooling: Pooling, length: int) -> None:
        """`length`: tokens of the prompt."""
        self._pooling = pooling
        self._length = length
        self._taken = 0
        """Positions below it are in `_total`."""
        self._total: F64 | None = None

    @property
    def needs_all(self) -> bool:
        """Whether positions before the last one must be computed, even if the prefix cache knows them."""
        return self._pooling.kind != "last"

    def wanted(self, first: int, end: int) -> range:
        """Of the positions [first, end) that a step computes, those whose states are needed."""
        kind, length = self._pooling.kind, self._length
        if kind == "last":
            return range(length - 1, length) if first < length <= end else range(0)
        if kind == "cls":
            length = 1
        return range(max(first, self._taken), max(min(end, length), self._taken))

    def add(self, states: F32) -> None:
        """The states [n, dim] of the positions that were `wanted`."""
        if not len(states):
            return
        if self._total is None:
            self._total = np.zeros(states.shape[1], np.float64)
        for row in states:
            self._total += row
        self._taken += len(states)

    def vector(self) -> bytes | None:
        """The embedding as little-endian float32, cut to the wanted dimensions, of length one; None if it is not
        finite.
        """
        assert self._total is not None
        vector = (self._total / self._taken)[: self._pooling.dimensions]
        if self._pooling.normalize:
            # One after the other: the same bits whatever vector instructions NumPy finds.
            length = float(np.sqrt(np.cumsum(vector * vector)[-1]))
            vector = vector / length if length > 0 else vector
        if not np.isfinite(vector).all():
            return None
        return vector.astype("<f4").tobytes()
