"""A model that routes may choose, and how it is doing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec

from tokentrail.answer import Backend, TargetState
from tokentrail.gateway.config import HealthSettings
from tokentrail.gateway.routing.circuit import Circuit, State, Trial
from tokentrail.protocol import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    TokentrailError,
)

log = logging.getLogger(__name__)

_LONGEST_FULL = 30.0
"""Seconds for which a target that said it was full is left alone at most."""


class Probed(Protocol):
    @property
    def ready(self) -> bool: ...

    @property
    def problem(self) -> str | None: ...


@runtime_checkable
class Probing(Protocol):
    """A backend that can be asked whether it is there: a remote one."""

    async def probe(self) -> Probed: ...

    async def aclose(self) -> None: ...


class Chance(Protocol):
    """`random.Random` is one."""

    def random(self) -> float: ...


class Counts(msgspec.Struct):
    """Since the start."""

    requests: int = 0
    failures: int = 0
    full: int = 0
    retries: int = 0
    """Requests that came because another target had failed."""
    hedges: int = 0
    """… because another one took long."""
    degraded: int = 0
    """… though it is not one of the route's own targets."""


class Target:
    """One model: its backend, its circuit, what runs there."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        health: HealthSettings,
        *,
        remote: bool,
        max_concurrent: int | None = None,
        let_go: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float],
        chance: Chance,
    ) -> None:
        """`let_go`: what is done once no route names it and its answers have ended."""
        self._let_go = let_go
        self.name = name
        self.backend = backend
        self.remote = remote
        self.max_concurrent = max_concurrent
        self.active = 0
        self.counts = Counts()
        self.circuit = Circuit(health, clock, chance.random)
        self.last_error: str | None = None
        self.last_error_at: float | None = None
        self.retired = False
        """No route names it any more: it is closed when its answers have ended."""
        self._clock = clock
        self._chance = chance
        self._full_until = 0.0
        self._probing: asyncio.Task[None] | None = None

    # --- may it be asked --------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        if self.max_concurrent is not None and self.active >= self.max_concurrent:
            return True
        return self._full_until > self._clock()

    @property
    def usable(self) -> bool:
        return self.circuit.allows and not self.full and self.backend.ready

    @property
    def waits(self) -> bool:
        """Not now, but a request may wait for it: its engine is being started again."""
        return not self.remote and self.circuit.allows and not self.full and not self.backend.ready

    # --- asking -----------------------------------------------------------------------------------------------

    def begin(self) -> Attempt:
        self.active += 1
        self.counts.requests += 1
        return Attempt(self, self.circuit.begin(), self._clock())

    def failed(self, error: BaseException) -> None:
        """Remember it, for people."""
        self.counts.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"[:300]
        self.last_error_at = time.time()

    def said_full(self, seconds: float) -> None:
        self.counts.full += 1
        self._full_until = self._clock() + min(seconds, _LONGEST_FULL)

    # --- probes -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._probing is None and isinstance(self.backend, Probing):
            self._probing = asyncio.ensure_future(self._probe_on(self.backend))

    async def stop(self) -> None:
        """No more probes."""
        task, self._probing = self._probing, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _probe_on(self, backend: Probing) -> None:
        while True:
            await self.probe(backend)
            settings = self.circuit.settings
            await asyncio.sleep(
                settings.probe_every_s * (1 + settings.jitter * (2 * self._chance.random() - 1))
            )

    async def probe(self, backend: Probing) -> None:
        try:
            found = await asyncio.wait_for(backend.probe(), self.circuit.settings.probe_timeout_s)
            well, problem = found.ready, found.problem
        except asyncio.TimeoutError:
            well, problem = False, "A probe was not answered in time."
        except Exception as error:
            well, problem = False, f"{type(error).__name__}: {error}"
        before = self.circuit.state
        self.circuit.probed(well)
        if not well:
            self.last_error, self.last_error_at = (problem or "It is not ready.")[:300], time.time()
        self.tell_change(before)

    def tell_change(self, before: State) -> None:
        state = self.circuit.state
        if state is before:
            return
        if state is State.OPEN:
            log.warning("target %s is ejected: %s", self.name, self.last_error)
        else:
            log.info("target %s: %s", self.name, state.value)

    def retire(self) -> None:
        self.retired = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self.retired and not self.active and self._let_go is not None:
            let_go, self._let_go = self._let_go, None
            closing = asyncio.ensure_future(self._end(let_go))
            closing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _end(self, let_go: Callable[[], Awaitable[None]]) -> None:
        await self.stop()
        await let_go()

    def ended(self) -> None:
        self.active -= 1
        self._close_if_idle()

    def describe(self) -> TargetState:
        circuit = self.circuit
        state: str = circuit.state.value
        if circuit.state is not State.OPEN:
            state = "down" if not self.backend.ready else "full" if self.full else state
        return TargetState(
            name=self.name,
            kind="remote" if self.remote else "local",
            state=state,
            since=time.time() - (self._clock() - circuit.since),
            active=self.active,
            max_concurrent=self.max_concurrent,
            share=circuit.share,
            opens_in_s=circuit.opens_in,
            ejections=circuit.ejections,
            last_error=self.last_error,
            last_error_at=self.last_error_at,
            **{field: getattr(self.counts, field) for field in Counts.__struct_fields__},
        )


def retryable(error: BaseException) -> bool:
    """Whether another target may do what this one did not. An error of ours in between is one, too."""
    if isinstance(error, (InvalidRequest, DeadlineExceeded)):
        return False
    if isinstance(error, TokentrailError):
        return error.status >= 500 or isinstance(error, Overloaded)
    return isinstance(error, Exception)


class Attempt:
    """One request to a target. To be told how it ended, once; more is ignored."""

    __slots__ = ("_over", "began", "target", "trial")

    def __init__(self, target: Target, trial: Trial, began: float) -> None:
        self.target = target
        self.trial = trial
        self.began = began
        self._over = False

    def succeeded(self) -> None:
        if not self._over:
            before = self.target.circuit.state
            self.trial.succeeded()
            self.target.tell_change(before)
            self._end()

    def left(self) -> None:
        """It was not carried through, which says nothing of the target."""
        if not self._over:
            self.trial.left()
            self._end()

    def failed(self, error: BaseException) -> None:
        """A request that is wrong, or whose time is over, says nothing of the target."""
        if self._over:
            return
        target = self.target
        if isinstance(error, Overloaded):
            target.said_full(error.retry_after)
        if isinstance(error, Overloaded) or not retryable(error):
            self.left()
            return
        before = target.circuit.state
        target.failed(error)
        self.trial.failed()
        target.tell_change(before)
        self._end()

    def _end(self) -> None:
        self._over = True
        self.target.ended()
