"""How many second attempts there may be: an outage must not multiply the load on what is left."""

from __future__ import annotations

from collections.abc import Callable

_SECONDS_KEPT = 10.0
"""What was not used lately may be used at once, as much as comes in so long."""
_KEPT = 10.0
"""Or so many, of those that come with requests."""


class RetryBudget:
    """A bucket into which each request puts a part of an attempt, and time some more."""

    def __init__(self, share: float, per_second: float, clock: Callable[[], float]) -> None:
        self.share = share
        self.per_second = per_second
        self._clock = clock
        self._at = clock()
        self._balance = self._most

    @property
    def _most(self) -> float:
        return self.per_second * _SECONDS_KEPT + (_KEPT if self.share else 0.0)

    def request(self) -> None:
        """A request came, whatever becomes of it."""
        self._refill()
        self._balance = min(self._most, self._balance + self.share)

    def take(self) -> bool:
        """Whether one more attempt may be made; then it is counted."""
        self._refill()
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True

    def _refill(self) -> None:
        now = self._clock()
        self._balance = min(self._most, self._balance + (now - self._at) * self.per_second)
        self._at = now
