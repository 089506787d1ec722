"""One engine process as its parent sees it: spawned, talked to, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from asyncio.subprocess import Process, create_subprocess_exec
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from tokentrail.engine.config import EngineConfig
from tokentrail.engine.wire import FrameReader, Launch, frame, message_decoder
from tokentrail.protocol import (
    CapacityError,
    EngineDead,
    EngineMessage,
    InvalidRequest,
    Loading,
    ModelFileError,
    Ready,
    RequestMessage,
    Shutdown,
    StartupFailed,
    TokentrailError,
)

if TYPE_CHECKING:
    from tokentrail.engine.loading import Progress  # with it comes NumPy

_SECONDS_TO_END = 5.0
"""Given to a process to finish its step and go, before it is killed."""
_STARTUP_ERRORS: dict[str, type[TokentrailError]] = {
    kind.__name__: kind for kind in (CapacityError, InvalidRequest, ModelFileError)
}


class _Connection(asyncio.Protocol):
    """Our end of the socket: hands each message to `handler`, in the very call in which it arrives."""

    def __init__(self) -> None:
        self.first: asyncio.Future[EngineMessage] = asyncio.get_running_loop().create_future()
        """The first message that is not about progress."""
        self.progress: Progress | None = None
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        """Done when nothing more will come: with None if the other end is closed, else with what was wrong."""
        self.handler: Callable[[EngineMessage], None] | None = None
        self.transport: asyncio.Transport | None = None
        self._reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class

    def data_received(self, data: bytes) -> None:
        try:
            for part in self._reader.feed(data):
                message = message_decoder.decode(part)
                if isinstance(message, Loading):
                    if self.progress is not None:
                        self.progress(message.done, message.total)
                elif not self.first.done():
                    self.first.set_result(message)
                elif self.handler is not None:
                    self.handler(message)
        except Exception as error:
            self._lose(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        self.handler = None
        if not self.lost.done():
            self.lost.set_result(error)


class EngineChild:
    """A spawned engine process and the socket to it, both used on one event loop only."""

    def __init__(self, process: Process, connection: _Connection) -> None:
        self._process = process
        self._connection = connection
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> str:
        """How it ended, for people."""
        code = self._process.returncode
        if code is None:
            return "still running"
        if code >= 0:
            return f"exit status {code}"
        if -code == getattr(signal, "SIGBUS", None):
            # What the system does to who reads a mapped file that has become shorter.
            return "killed by SIGBUS: a model file was cut short or could not be read while it was loaded"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"

    @classmethod
    async def spawn(cls, config: EngineConfig, runner: str | None = None) -> EngineChild:
        """Start the process. It is not ready yet."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "tokentrail.engine.process",
                    stdin=theirs.fileno(),
                    stdout=2,  # what a library prints there must not mix with a command's output
                    env=_environment(),
                    start_new_session=True,  # a terminal's Ctrl-C is for the parent to act on
                )
        except BaseException:
            ours.close()
            raise
        try:
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_unix_connection(_Connection, sock=ours)
        except BaseException:
            ours.close()
            process.kill()
            raise
        launch = Launch(
            config=config,
            parent=os.getpid(),
            die_with_thread=threading.current_thread() is threading.main_thread(),
            runner=runner,
        )
        child = cls(process, connection)
        child._write(frame(launch))
        return child

    async def ready(self, progress: Progress | None = None) -> Ready:
        """Wait until it has loaded its model, and tell how far it is. Raises the error that kept it from starting,
        or `EngineDead`.
        """
        self._connection.progress = progress
        first = self._connection.first
        exiting = asyncio.ensure_future(self._process.wait())
        try:
            await _either(first, exiting)
            if not first.done():  # its last words may still be on their way
                await asyncio.wait({first}, timeout=0.5)
            message = first.result() if first.done() else None
        finally:
            exiting.cancel()
        if isinstance(message, Ready):
            self._ready = True
            return message
        if isinstance(message, StartupFailed):
            raise _STARTUP_ERRORS.get(message.kind, EngineDead)(message.message)
        raise EngineDead(f"The engine process ended before it was ready ({self.exit_status}).")

    def send(self, message: RequestMessage) -> None:
        """Hand over a message. It never waits: what the socket does not hold yet is kept here. What is sent to a
        process that has just died is lost, as it would be a moment earlier.
        """
        self._write(frame(message))

    def _write(self, data: bytearray) -> None:
        transport = self._connection.transport
        assert transport is not None
        # uvloop's transports raise when they are closed, asyncio's do not.
        if not transport.is_closing():
            transport.write(data)

    def listen(self, handler: Callable[[EngineMessage], None]) -> None:
        """Call `handler` with each message after `ready`'s, until the process is `dead`."""
        self._connection.handler = handler

    async def dead(self) -> Exception | None:
        """Wait until the process has ended, and end it if it cannot be understood any more (or `handler` failed):
        returns what was wrong then. No message is handed on afterwards.
        """
        lost = self._connection.lost
        exiting = asyncio.ensure_future(self._process.wait())
        try:
            await _either(lost, exiting)
            self._connection.handler = None
            if not exiting.done():  # it closes its end when it dies; give it the moment to do so
                await asyncio.wait({exiting}, timeout=0.5)
            if not exiting.done():
                await self.end()
        finally:
            self._connection.handler = None
            exiting.cancel()
        return lost.result() if lost.done() else None

    def kill(self) -> None:
        """End the process at once: then it is `dead`."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """End the process if it still runs, and clean up."""
        if self._process.returncode is None:
            if self._ready:
                self.send(Shutdown())
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _SECONDS_TO_END)
            if self._process.returncode is None:
                self.kill()
                await self._process.wait()
        if self._connection.transport is not None:
            self._connection.transport.abort()


async def _either(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _environment() -> dict[str, str]:
    """Ours; and where we do not import from the working directory, the child must not either (`-m` would)."""
    environment = dict(os.environ)
    environment.pop("TOKENTRAIL_API_KEY", None)  # who may ask is not its business
    if sys.path[:1] not in ([""], [os.getcwd()]):
        environment["PYTHONSAFEPATH"] = "1"
    return environment
