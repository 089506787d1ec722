"""The asyncio client of an engine process: starts it, streams from it, and starts it again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from tokentrail.engine.child import EngineChild
from tokentrail.engine.config import EngineConfig
from tokentrail.engine.rejection import error_of
from tokentrail.engine.supervision import DEATHS_ALLOWED, InFlight, Recovery
from tokentrail.protocol import (
    Abort,
    BlockStates,
    Delta,
    EngineDead,
    EngineInfo,
    EngineMessage,
    EngineStats,
    Finish,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    Look,
    Ready,
    Rejected,
    RequestMessage,
    StepOutput,
    StepRecord,
    TokentrailError,
)

if TYPE_CHECKING:
    from tokentrail.engine.loading import Progress  # with it comes NumPy

logger = logging.getLogger(__name__)

Sink = Callable[[Delta | TokentrailError], None]
StepListener = Callable[[StepRecord, list[Delta]], None]
ResumeListener = Callable[[list[str]], None]

_LONGEST_PAUSE = 30.0
"""Seconds between two attempts to start an engine that keeps dying."""
_HEALTHY_AFTER = 60.0
"""Seconds after which a death no longer counts as one in a row, tokens or not."""


class EngineClient:
    """One engine process, kept alive.

    Requests made while the engine restarts wait for it. Only when it has died three times in a row without a
    token (`supervision`) do those in flight end with `EngineDead`, and new ones are refused with it at once
    until one of the further attempts, made at growing intervals, succeeds.
    """

    def __init__(self, config: EngineConfig, *, runner: str | None = None, number: int = 0) -> None:
        """`runner`: `module:callable` that makes the runner; None: see `loading.create_runner`. `number`: which of
        several engines of one model it is.
        """
        self.config = config
        """Of processes that are started from now on."""
        self.number = number
        self.on_death: Callable[[EngineClient], None] | None = None
        """Called when its process has died: may `release` what is in flight. What remains waits for the next process.
        """
        self.on_birth: Callable[[EngineClient], None] | None = None
        """Called when a new process has taken over."""
        self._runner = runner
        self._info: EngineInfo | None = None
        self._recovery = Recovery()
        self._sinks: dict[str, Sink] = {}
        self._child: EngineChild | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._stats = EngineStats()
        """Of the process that runs now."""
        self._earlier = EngineStats()
        """Counters of those before it, added up."""
        self._step_listeners: list[StepListener] = []
        self._resume_listeners: list[ResumeListener] = []
        self._failures = 0
        self._closing = False
        self._owed = False
        """The engine was sent something since it last said something, or has work."""
        self._looking: list[asyncio.Future[bytes]] = []
        """Who waits for the states of the KV blocks."""
        self._heard = 0
        """Messages from engine processes."""
        self._heard_at = 0.0
        """When the last one came, on the monotonic clock."""
        self.restarts = 0
        """Times that a new process took over."""

    # --- life --------------------------------------------------------------------------------------

    async def start(self, progress: Progress | None = None) -> None:
        """Start the engine process and wait until it is ready. `progress` is told now and then how far loading is.

        Raises what kept it from starting: `ModelFileError`, `CapacityError`, `InvalidRequest`, or
        `EngineDead`.
        """
        child, ready = await self._spawn(progress)
        self._info = ready.info
        self._take_over(child)
        self._supervisor = asyncio.create_task(self._supervise(child), name="engine-supervisor")

    async def close(self) -> None:
        """End the engine process. Streams that somebody still waits for end with `EngineDead`."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        child, self._child = self._child, None
        if child is not None:
            await child.end()
        self._shown(b"")
        for sink in list(self._sinks.values()):
            sink(EngineDead("The engine was shut down."))

    @property
    def alive(self) -> bool:
        """An engine process is up and takes requests."""
        return self._child is not None

    @property
    def info(self) -> EngineInfo:
        """Of the process that runs now, or ran last. RuntimeError before `start`."""
        if self._info is None:
            raise RuntimeError("the engine has not been started")
        return self._info

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None while there is none."""
        return None if self._child is None else self._child.pid

    @property
    def stats(self) -> EngineStats:
        """As of the latest step. Counters go on over restarts."""
        return _sum_counters(self._earlier, self._stats)

    async def block_states(self) -> list[bytes]:
        """A byte a KV block of the engine process, as `BlockStates` has them; none while there is no process."""
        if self._child is None:
            return []
        looking = asyncio.get_running_loop().create_future()
        self._looking.append(looking)
        if len(self._looking) == 1:
            self._child.send(Look())
        return [states] if (states := await looking) else []

    def _shown(self, states: bytes) -> None:
        looking, self._looking = self._looking, []
        for future in looking:
            if not future.done():
                future.set_result(states)

    def add_step_listener(self, listener: StepListener) -> None:
        """Call `listener(record, deltas)` after each engine step, before the deltas reach their streams."""
        self._step_listeners.append(listener)

    def add_resume_listener(self, listener: ResumeListener) -> None:
        """Call `listener(ids)` when a process takes over from one that died, before it is sent anything: with the ids
        of the sequences that the dead one had.
        """
        self._resume_listeners.append(listener)

    @property
    def down(self) -> bool:
        """It takes no requests until it has come up again."""
        return self._closing or self._info is None or self._recovery.down

    @property
    def cautious(self) -> bool:
        """One of its requests may be what kills it; others had better go elsewhere."""
        return self._recovery.cautious

    @property
    def load(self) -> int:
        """Sequences in flight."""
        return len(self._recovery)

    @property
    def silence(self) -> float:
        """Seconds for which it has owed a word."""
        return time.monotonic() - self._heard_at if self._owed and self._child is not None else 0.0

    # --- requests ----------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, sink: Sink) -> Callable[[], None]:
        """Compute one sequence. `sink` is called with each delta in the very call in which it arrives, up to
        the one with `finish`, or with the error that ends the sequence. Returns what drops the sequence: to be
        called in the end in any case, and earlier to abort it. Nothing reaches `sink` afterwards.

        Errors: `Overloaded` when the queue is full, `InvalidRequest` for what the engine cannot compute,
        `EngineDead`; the latter two are raised at once where they are known at once.
        """
        flight = self.begin(request, sink)

        def drop() -> None:
            if self._sinks.get(request.id) is sink:
                self.drop(flight)

        return drop

    def begin(self, request: GenerateRequest, sink: Sink) -> InFlight:
        """The same; what it returns is to be given to `drop`, if nobody has called `release`."""
        if self._closing or self._info is None:
            raise EngineDead("The engine is not running.")
        if self._recovery.down:
            raise EngineDead(
                "The engine died several times in a row and is being restarted. Try again later."
            )
        if request.id in self._sinks:
            raise InvalidRequest(f"A request with id {request.id} is already in the engine.", param="id")
        if not request.arrival:
            request = msgspec.structs.replace(request, arrival=time.time())
        flight = InFlight(request)
        self.take(flight, sink)
        return flight

    def take(self, flight: InFlight, sink: Sink) -> None:
        """Compute what is in flight, from where it is."""
        self._sinks[flight.request.id] = sink
        self._send_all(self._recovery.add(flight))

    def drop(self, flight: InFlight) -> None:
        """Nobody wants it any more."""
        del self._sinks[flight.request.id]
        self._drop(flight)

    @property
    def flights(self) -> list[InFlight]:
        return self._recovery.flights

    def release(self, flight: InFlight) -> Sink:
        """Let go of what is in flight, while there is no process: another engine is to `take` it, with this sink."""
        assert self._child is None
        self._recovery.release(flight)
        return self._sinks.pop(flight.request.id)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """`submit` as a stream. Closing it before its end aborts the sequence."""
        queue: asyncio.Queue[Delta | TokentrailError] = asyncio.Queue()
        drop = self.submit(request, queue.put_nowait)
        try:
            while True:
                item = await queue.get()
                if isinstance(item, TokentrailError):
                    raise item
                yield item
                if item.finish is not None:
                    return
        finally:
            drop()

    async def abort(self, ids: Iterable[str]) -> None:
        """End these sequences. Who still listens to one gets `FinishReason.ABORT`."""
        for id in ids:
            flight = self._recovery.get(id)
            if flight is not None:
                self._drop(flight)
                self._sinks[id](Delta(id, [], [], finish=Finish(FinishReason.ABORT)))

    def _drop(self, flight: InFlight) -> None:
        """Nobody wants the request any more; the engine is told so if it has it."""
        if self._recovery.get(flight.request.id) is flight:
            if flight.sent:
                self._send(Abort([flight.request.id]))
            self._send_all(self._recovery.ended(flight))

    def _send_all(self, flights: Iterable[InFlight]) -> None:
        for flight in flights:
            self._send(flight.message())

    def _send(self, message: RequestMessage) -> None:
        if self._child is not None:
            if not self._owed:
                self._owed = True
                self._heard_at = time.monotonic()
            self._child.send(message)

    # --- what the engine says ----------------------------------------------------------------------

    def _on_message(self, message: EngineMessage) -> None:
        self._heard += 1
        self._heard_at = time.monotonic()
        if isinstance(message, StepOutput):
            self._on_step(message)
        elif isinstance(message, Rejected):
            self._on_rejected(message)
        elif isinstance(message, BlockStates):
            self._shown(message.states)
        if not self._recovery.busy:
            self._owed = False

    def _on_step(self, output: StepOutput) -> None:
        self._stats = output.stats
        output.record.replica, output.record.life = self.number, self.restarts
        recovery, sinks = self._recovery, self._sinks
        # A delta may be on its way when its sequence is aborted; nobody is to see it any more.
        deltas = [delta for delta in output.deltas if recovery.get(delta.id) is not None]
        for listener in self._step_listeners:
            try:
                listener(output.record, deltas)
            except Exception:
                logger.exception("a step listener failed")
        for delta in deltas:
            flight = recovery.get(delta.id)
            if flight is None:  # dropped by who got a delta before it
                continue
            flight.deliver(delta)
            if delta.token_ids or (delta.finish is not None and delta.finish.embedding is not None):
                self._failures = 0
                self._send_all(recovery.progressed(flight))
            if delta.finish is not None:
                self._send_all(recovery.ended(flight))
            try:
                sinks[delta.id](delta)
            except Exception:
                logger.exception("a sequence's sink failed")

    def _on_rejected(self, rejected: Rejected) -> None:
        flight = self._recovery.get(rejected.id)
        if flight is not None:
            self._end(flight, error_of(rejected))
            self._send_all(self._recovery.ended(flight))

    def _end(self, flight: InFlight, error: TokentrailError) -> None:
        self._sinks[flight.request.id](error)

    # --- supervision -------------------------------------------------------------------------------

    async def _spawn(self, progress: Progress | None = None) -> tuple[EngineChild, Ready]:
        child = await EngineChild.spawn(self.config, self._runner)
        try:
            return child, await child.ready(progress)
        except BaseException:
            await child.end()
            raise

    async def _supervise(self, child: EngineChild) -> None:
        while True:
            born = time.monotonic()
            watchdog = asyncio.create_task(self._watch(child), name="engine-watchdog")
            try:
                error = await child.dead()
            finally:
                watchdog.cancel()
            if error is not None:
                logger.error("Lost the engine process; it was ended.", exc_info=error)
            if time.monotonic() - born > _HEALTHY_AFTER:
                self._failures = 0
            logger.error("The engine process (pid %d) died: %s. Restarting it.", child.pid, child.exit_status)
            self._child = None
            self._shown(b"")
            self._earlier = self.stats
            self._stats = EngineStats(blocks_total=self._stats.blocks_total)
            self._after_death(f"The engine died {DEATHS_ALLOWED} times in a row ({child.exit_status}).")
            await child.end()
            child = await self._restart()

    async def _watch(self, child: EngineChild) -> None:
        """Kill an engine process that has work and says nothing for too long: `_supervise` starts another."""
        limit = self.config.step_timeout
        if limit is None:
            return
        pause = min(1.0, limit / 5)
        silent, heard = 0.0, self._heard
        while silent < limit:
            began = time.monotonic()
            await asyncio.sleep(pause)
            if heard == self._heard and self._owed:
                # Time in which this process was itself held up (stopped, starved) says nothing of the other.
                silent += min(time.monotonic() - began, 2 * pause)
            else:
                silent, heard = 0.0, self._heard
        logger.error(
            "The engine process (pid %d) has finished no step for %g s (--step-timeout) and is killed.",
            child.pid,
            limit,
        )
        child.kill()

    async def _restart(self) -> EngineChild:
        while True:
            if self._failures >= DEATHS_ALLOWED:
                await asyncio.sleep(min(2.0 ** (self._failures - DEATHS_ALLOWED), _LONGEST_PAUSE))
            try:
                child, ready = await self._spawn()
            except Exception as error:  # whatever it is, the next attempt may succeed
                logger.error("The engine process could not be restarted: %s", error)
                self._after_death(f"The engine could not be restarted: {error}")
                continue
            self.restarts += 1
            self._check_fingerprint(ready.info)
            self._info = ready.info
            self.tell_resumed([flight.request.id for flight in self.flights if flight.accepted])
            self._take_over(child)
            if self.on_birth is not None:
                self.on_birth(self)
            return child

    def tell_resumed(self, ids: list[str]) -> None:
        for listener in self._resume_listeners if ids else ():
            try:
                listener(ids)
            except Exception:
                logger.exception("a resume listener failed")

    def _take_over(self, child: EngineChild) -> None:
        self._child = child
        self._owed = False
        child.listen(self._on_message)
        self._send_all(self._recovery.started())

    def _after_death(self, message: str) -> None:
        self._failures += 1
        self._recovery.accuse()
        if self.on_death is not None:
            self.on_death(self)
        for flight in self._recovery.died():
            self._end(flight, EngineDead(message))

    def _check_fingerprint(self, info: EngineInfo) -> None:
        """Streams can only go on where the same bytes are promised."""
        if info.fingerprint == self.info.fingerprint:
            return
        logger.error("The model changed while the engine restarted; answers that had begun cannot go on.")
        for flight in self._recovery.begun():
            self._end(
                flight, EngineDead("The engine was restarted with another model; the answer cannot go on.")
            )
            self._recovery.ended(flight)


def _sum_counters(earlier: EngineStats, now: EngineStats) -> EngineStats:
    return EngineStats(
        running=now.running,
        waiting=now.waiting,
        blocks_total=now.blocks_total,
        blocks_used=now.blocks_used,
        prefix_queries=earlier.prefix_queries + now.prefix_queries,
        prefix_hits=earlier.prefix_hits + now.prefix_hits,
        preemptions=earlier.preemptions + now.preemptions,
        prompt_tokens=earlier.prompt_tokens + now.prompt_tokens,
        generated_tokens=earlier.generated_tokens + now.generated_tokens,
        steps=earlier.steps + now.steps,
        drafted_tokens=earlier.drafted_tokens + now.drafted_tokens,
        accepted_tokens=earlier.accepted_tokens + now.accepted_tokens,
    )
