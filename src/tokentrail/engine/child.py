"""One engine process as its parent sees it: spawned, talked to, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE, Process, create_subprocess_exec

import zmq
import zmq.asyncio

from tokentrail.engine.config import EngineConfig
from tokentrail.engine.wire import Launch, encoder, message_decoder, pack_launch
from tokentrail.protocol import (
    CapacityError,
    EngineDead,
    EngineMessage,
    InvalidRequest,
    ModelFileError,
    Ready,
    RequestMessage,
    Shutdown,
    StartupFailed,
    TokentrailError,
)

_SECONDS_TO_END = 5.0
"""Given to a process to finish its step and go, before it is killed."""
_LONGEST_SOCKET_PATH = 100
"""Bytes; Unix socket addresses hold 108 on Linux and 104 on macOS."""
_STARTUP_ERRORS: dict[str, type[TokentrailError]] = {
    kind.__name__: kind for kind in (CapacityError, InvalidRequest, ModelFileError)
}


class EngineChild:
    """A spawned engine process and the socket to it, both used on one event loop only."""

    def __init__(
        self, process: Process, context: zmq.asyncio.Context, socket: zmq.asyncio.Socket, folder: str
    ) -> None:
        self._process = process
        self._context = context
        self._socket = socket
        self._folder = folder
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
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"

    @classmethod
    async def spawn(cls, config: EngineConfig, runner: str | None = None) -> EngineChild:
        """Start the process. It is not ready yet."""
        # The folder is ours alone (mode 0700), so nobody else can speak to the engine.
        folder = tempfile.mkdtemp(prefix="tokentrail-")
        if len(os.fsencode(folder)) + len("/engine") > _LONGEST_SOCKET_PATH:
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="tokentrail-", dir="/tmp")
        address = f"ipc://{folder}/engine"
        context = zmq.asyncio.Context(io_threads=1)
        socket = context.socket(zmq.PAIR)
        for option in (zmq.RCVHWM, zmq.SNDHWM, zmq.LINGER):
            socket.setsockopt(option, 0)
        process = None
        try:
            socket.bind(address)
            process = await create_subprocess_exec(
                sys.executable,
                "-m",
                "tokentrail.engine.process",
                stdin=PIPE,
                stdout=2,  # what a library prints there must not mix with a command's output
                env=_environment(),
                start_new_session=True,  # a terminal's Ctrl-C is for the parent to act on
            )
            assert process.stdin is not None
            process.stdin.write(
                pack_launch(
                    Launch(
                        config=config,
                        address=address,
                        parent=os.getpid(),
                        die_with_thread=threading.current_thread() is threading.main_thread(),
                        runner=runner,
                    )
                )
            )
            with contextlib.suppress(ConnectionError):  # it ended at once; `ready` says so
                await process.stdin.drain()
        except BaseException:
            if process is not None and process.returncode is None:
                process.kill()
            context.destroy(linger=0)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(process, context, socket, folder)

    async def ready(self) -> Ready:
        """Wait until it has loaded its model. Raises the error that kept it from starting, or
        `EngineDead`.
        """
        receiving = asyncio.ensure_future(self.receive())
        exiting = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({receiving, exiting}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():  # its last words may still be on their way
                await asyncio.wait({receiving}, timeout=0.5)
            message = await receiving if receiving.done() else None
        finally:
            receiving.cancel()
            exiting.cancel()
        if isinstance(message, Ready):
            self._ready = True
            # The two are connected, and nobody else is to connect: without the folder there is nothing to
            # leave behind, however the processes end.
            shutil.rmtree(self._folder, ignore_errors=True)
            return message
        if isinstance(message, StartupFailed):
            raise _STARTUP_ERRORS.get(message.kind, EngineDead)(message.message)
        raise EngineDead(f"The engine process ended before it was ready ({self.exit_status}).")

    def send(self, message: RequestMessage) -> None:
        """Hand over a message. It goes at once: the socket has no limit to wait for."""
        self._socket.send(encoder.encode(message))

    async def receive(self) -> EngineMessage:
        return message_decoder.decode(await self._socket.recv())

    async def wait(self) -> None:
        """Until the process has ended."""
        await self._process.wait()

    async def end(self) -> None:
        """End the process if it still runs, and clean up."""
        if self._process.returncode is None:
            if self._ready:
                self.send(Shutdown())
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _SECONDS_TO_END)
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Ours; and where we do not import from the working directory, the child must not either (`-m` would)."""
    environment = dict(os.environ)
    if sys.path[:1] not in ([""], [os.getcwd()]):
        environment["PYTHONSAFEPATH"] = "1"
    return environment
