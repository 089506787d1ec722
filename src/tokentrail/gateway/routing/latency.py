"""How long answers took to begin lately."""

from __future__ import annotations

from collections import deque

_KEPT = 500
_ENOUGH = 20
_SORT_EVERY = 25


class FirstTokens:
    """Times from a request to the first piece of its answer, the latest ones."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_KEPT)
        self._fresh = 0
        self._p95: float | None = None

    def add(self, seconds: float) -> None:
        self._latest.append(seconds)
        self._fresh += 1
        if self._fresh >= _SORT_EVERY or (self._p95 is None and len(self._latest) >= _ENOUGH):
            self._fresh = 0
            self._p95 = sorted(self._latest)[int(0.95 * (len(self._latest) - 1))]

    @property
    def p95(self) -> float | None:
        """None: too few are known."""
        return self._p95
