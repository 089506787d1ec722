"""Whether a target is asked: ejected after failures for growing times, tried again, and given its share back slowly.

A circuit breaker (closed → open → half-open → closed) that hears of requests and of probes. Pure bookkeeping: time and
chance are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from tokentrail.gateway.config import HealthSettings

_LEAST_SHARE = 0.1
"""Of a target that is tried, or has just come back."""


class State(str, Enum):
    CLOSED = "closed"
    """It is asked."""
    OPEN = "open"
    """Ejected: nobody asks it until its time is over."""
    HALF_OPEN = "half_open"
    """A few requests try it."""


class Circuit:
    """Of one target."""

    def __init__(
        self, settings: HealthSettings, clock: Callable[[], float], draw: Callable[[], float]
    ) -> None:
        """`clock`: monotonic seconds; `draw`: numbers in [0, 1)."""
        self.settings = settings
        self._clock = clock
        self._draw = draw
        self._state = State.CLOSED
        self.since = clock()
        """When it got into its state, on the clock."""
        self.ejections = 0
        self._until = 0.0
        self._lasted = 0.0
        """Seconds of the last ejection, before chance."""
        self._row = 0
        """Failures in a row; of a half-open circuit: successes."""
        self._latest: deque[bool] = deque(maxlen=settings.share_of)
        """Whether requests failed."""
        self._trials = 0
        """Requests under way that try it."""
        self._probes_failed = 0
        self._slow_from: float | None = None
        """Since when it is given its share back."""

    # --- asking ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        if self._state is State.OPEN and not self.opens_in:
            self._enter(State.HALF_OPEN)
        return self._state

    @property
    def opens_in(self) -> float:
        """Seconds until an ejected target is tried, as far as is known; 0: now."""
        if self._state is not State.OPEN:
            return 0.0
        left = max(0.0, self._until - self._clock())
        # What does not answer probes need not be tried with requests.
        return left or (self.settings.probe_every_s if self._probes_failed else 0.0)

    @property
    def allows(self) -> bool:
        """A request may be sent now."""
        state = self.state
        return state is State.CLOSED or (state is State.HALF_OPEN and self._trials < self.settings.trials)

    @property
    def share(self) -> float:
        """Part of its weight that it has now, in (0, 1]."""
        if self.state is State.HALF_OPEN:
            return _LEAST_SHARE
        if self._slow_from is None:
            return 1.0
        passed = self._clock() - self._slow_from
        if passed >= self.settings.slow_start_s:
            self._slow_from = None
            return 1.0
        return max(_LEAST_SHARE, passed / self.settings.slow_start_s)

    def begin(self) -> Trial:
        """A request is sent. It must be told how that ended, once."""
        tries = self.state is State.HALF_OPEN
        self._trials += tries
        return Trial(self, tries, self.ejections)

    # --- hearing --------------------------------------------------------------------------------------------

    def probed(self, well: bool) -> None:
        """A probe came back."""
        self._probes_failed = 0 if well else self._probes_failed + 1
        if self._state is State.OPEN:
            return
        if self._probes_failed >= self.settings.probe_failures or (not well and self._tried):
            self._eject()

    @property
    def _tried(self) -> bool:
        return self._state is State.HALF_OPEN

    def _ended(self, trial: Trial, failed: bool | None) -> None:
        if trial.ejections != self.ejections:
            return  # of before it was ejected: that has been counted
        if trial.tries:
            self._trials -= 1
        if failed is None or self._state is State.OPEN:
            return
        if self._tried:
            if failed:
                self._eject()
                return
            self._row += 1
            if self._row >= self.settings.successes:
                self._enter(State.CLOSED)
                self._slow_from = self._clock()
            return
        self._row = self._row + 1 if failed else 0
        self._latest.append(failed)
        full = len(self._latest) == self._latest.maxlen
        share = sum(self._latest) / len(self._latest)
        if failed and (
            self._row >= self.settings.failures or (full and share >= self.settings.failure_share)
        ):
            self._eject()

    def _eject(self) -> None:
        settings, now = self.settings, self._clock()
        healthy = self._state is State.CLOSED and now - self.since >= 2 * self._lasted
        longer = settings.eject_s if healthy or not self._lasted else 2 * self._lasted
        self._lasted = min(longer, settings.eject_most_s)
        self._until = now + self._lasted * (1 + settings.jitter * (2 * self._draw() - 1))
        self.ejections += 1
        self._enter(State.OPEN)

    def _enter(self, state: State) -> None:
        self._state = state
        self.since = self._clock()
        self._row = self._trials = 0
        self._slow_from = None
        self._latest = deque(maxlen=self.settings.share_of)


class Trial:
    """One request to a target."""

    __slots__ = ("_circuit", "_over", "ejections", "tries")

    def __init__(self, circuit: Circuit, tries: bool, ejections: int) -> None:
        self._circuit = circuit
        self._over = False
        self.tries = tries
        self.ejections = ejections

    def succeeded(self) -> None:
        self._end(False)

    def failed(self) -> None:
        self._end(True)

    def left(self) -> None:
        """It ended for a reason that says nothing of the target."""
        self._end(None)

    def _end(self, failed: bool | None) -> None:
        if not self._over:
            self._over = True
            self._circuit._ended(self, failed)
