"""What the parts of a running server share, and how each running request can be ended from outside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request

from tokentrail.protocol import DeadlineExceeded
from tokentrail.server.errors import CLIENT_GONE, HTTPError, unavailable
from tokentrail.server.keys import Keys

if TYPE_CHECKING:
    from tokentrail.answer import Backend, Identity
    from tokentrail.gateway import Gateway
    from tokentrail.gateway.observing import Observer
    from tokentrail.journey import JourneyStore
    from tokentrail.observability import Metrics
    from tokentrail.server.config import ServerConfig

log = logging.getLogger(__name__)


class ClientGone(HTTPError):
    """The client hung up. Nobody reads the answer to this, but logs and metrics do."""

    def __init__(self) -> None:
        message = "The client closed the connection."
        super().__init__(CLIENT_GONE, message, type="server_error", code="client_gone")


class Background(Protocol):
    def start(self) -> None: ...

    async def stop(self) -> None: ...


class ServerState:
    """Everything a route needs. `backend` is None until the model is loaded."""

    def __init__(
        self,
        config: ServerConfig,
        journeys: JourneyStore,
        metrics: Metrics,
        gateway: Gateway | None = None,
    ) -> None:
        self.config = config
        self.journeys = journeys
        self.metrics = metrics
        self.backend: Backend | None = None
        self.gateway = gateway
        """What a deployment file turns on."""
        self.keys = Keys(config.api_keys, None if gateway is None else gateway.keys)
        self.observer: Observer | None = None
        """Who is told of each request."""
        self.draining = False
        self.background: list[Background] = []
        """What works beside requests, from the moment that they are taken until the server drains."""
        self.active: set[Guard] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, backend: Backend) -> None:
        """Take requests from now on, for `backend`, behind what the deployment file turns on."""
        gateway = self.gateway
        if gateway is not None:
            address = (self.config.host, self.config.port)
            self.observer = gateway.observe(self.journeys, self.metrics, address)
        self.backend = backend if gateway is None else gateway.around(backend, self.journeys, self.metrics)
        for work in self.background:
            work.start()

    @property
    def health(self) -> str:
        """ok, or why no request would be taken."""
        if self.draining:
            return "shutting down"
        if self.backend is None:
            return "starting"
        return "ok" if self.backend.ready else "engine down"

    def backend_for(self, request: Request) -> Backend:
        """The backend as who asks may see it, or a 503 that says why there is none."""
        backend = self.ready_backend()
        identity: Identity = request.state.identity
        if identity.models is None:
            return backend
        from tokentrail.gateway.keys.access import ScopedBackend

        return ScopedBackend(backend, identity)

    def ready_backend(self) -> Backend:
        """All of the backend, or a 503 that says why there is none."""
        if self.draining:
            raise unavailable("The server is shutting down.", "shutting_down")
        if self.backend is None:
            raise unavailable("The model is still being loaded.", "starting")
        # While an engine is being restarted requests wait for it; the backend refuses them when it gives up.
        return self.backend

    def entered(self, guard: Guard) -> None:
        self.active.add(guard)
        self._idle.clear()
        self.metrics.in_flight = len(self.active)

    def left(self, guard: Guard) -> None:
        self.active.discard(guard)
        self.metrics.in_flight = len(self.active)
        if not self.active:
            self._idle.set()

    async def drain(self, timeout: float) -> None:
        """Take no more requests, let those that run finish within `timeout` seconds, then end them."""
        self.draining = True
        for work in self.background:
            await work.stop()
        if self.active:
            count = len(self.active)
            answers = f"{count} answer{'s' * (count != 1)}"
            log.info("shutting down: waiting for %s, up to %g s; again to end at once", answers, timeout)
        else:
            log.info("shutting down")
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:
            log.warning("shutting down: %d answers did not finish in time and are ended", len(self.active))
            for guard in list(self.active):
                guard.end(unavailable("The server is shutting down.", "shutting_down"))
            # Their last words take a moment, unless nobody reads them.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), 2.0)


_LATE = 0.25
"""Seconds that answers get to end by themselves when the time of their request is up."""


class Guard:
    """While a request runs: ends it when its client hangs up, when its time is up, or when somebody calls `end`.

    The task in `async with` is cancelled then, and the reason is raised where the block ends.
    """

    def __init__(self, state: ServerState, request: Request) -> None:
        self._state = state
        self._receive = request.receive
        self._received: float = getattr(request.state, "received", time.time())
        self._timer: asyncio.TimerHandle | None = None
        self._reason: Exception | None = None
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def end(self, reason: Exception) -> None:
        if self._reason is None and self._task is not None:
            self._reason = reason
            # Who bills for the answer has to know whose doing it is.
            self._task.cancel(getattr(reason, "code", None))

    async def __aenter__(self) -> Guard:
        self._task = asyncio.current_task()
        self._watcher = asyncio.create_task(self._watch())
        self._state.entered(self)
        timeout = self._state.config.request_timeout
        if timeout is not None:
            late = DeadlineExceeded(
                f"The request was not done within {timeout:g} seconds, the time it was given."
            )
            left = max(0.0, self._received + timeout + _LATE - time.time())
            self._timer = asyncio.get_running_loop().call_later(left, self.end, late)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._watcher is not None
        self._state.left(self)
        self._watcher.cancel()
        if self._timer is not None:
            self._timer.cancel()
        reason, task, self._task = self._reason, self._task, None
        if reason is None:
            return
        if error is None:
            # Cancelled in its very last moment: let the cancellation arrive here, not in code that follows.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        elif not isinstance(error, asyncio.CancelledError):
            return
        if hasattr(task, "uncancel"):  # Python 3.11 on counts cancellations
            task.uncancel()  # type: ignore[union-attr]
        raise reason from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end(ClientGone())
