"""The engine process: `python -m tokentrail.engine.process`, started by `EngineClient` with a `Launch` on its
stdin.

It takes requests from one ZeroMQ socket, steps, and sends what each step brought. Whatever goes wrong in a
step ends the process: the client starts another, and the requests resume there. Signals are the parent's
business: SIGINT and SIGTERM are ignored here, as a terminal or service manager sends them to parent and child
at once while the parent still drains. The process ends by `Shutdown`, or when its parent is gone.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import threading
import time
import traceback

import zmq

from tokentrail.engine.core import EngineCore
from tokentrail.engine.loading import create_runner
from tokentrail.engine.wire import Launch, encoder, read_launch, request_decoder
from tokentrail.protocol import (
    Abort,
    EngineMessage,
    GenerateRequest,
    Ready,
    Shutdown,
    StartupFailed,
    TokentrailError,
)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        launch = read_launch(sys.stdin.buffer)
    except EOFError as error:
        print(f"tokentrail engine: {error}", file=sys.stderr)
        return 2
    _end_with_parent(launch)

    context = zmq.Context(io_threads=1)
    socket = context.socket(zmq.PAIR)
    # No message is ever dropped or waited for: the client bounds the requests, and they bound the answers.
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.connect(launch.address)
    try:
        try:
            core = _start(launch)
        except Exception as error:
            if not isinstance(error, TokentrailError):
                traceback.print_exc()
            _send(socket, StartupFailed(_one_line(error), type(error).__name__))
            return 1
        _send(socket, Ready(core.runner.info, os.getpid()))
        _serve(core, socket)
        core.close()
        return 0
    finally:
        socket.close()
        context.term()


def _start(launch: Launch) -> EngineCore:
    started = time.perf_counter()
    runner = create_runner(launch.config, launch.runner)
    core = EngineCore(launch.config, runner)
    if not runner.info.load_seconds:
        runner.info.load_seconds = time.perf_counter() - started
    # What exists now stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    return core


def _serve(core: EngineCore, socket: zmq.Socket[bytes]) -> None:
    """Take messages and step until told to end. Sleeps on the socket when there is nothing to do."""
    while True:
        while not core.has_work or socket.poll(0):
            message = request_decoder.decode(socket.recv())
            if isinstance(message, GenerateRequest):
                rejected = core.add_request(message)
                if rejected is not None:
                    _send(socket, rejected)
            elif isinstance(message, Abort):
                core.abort(message.ids)
            elif isinstance(message, Shutdown):
                return
        output = core.step()
        if output is not None:
            _send(socket, output)


def _send(socket: zmq.Socket[bytes], message: EngineMessage) -> None:
    socket.send(encoder.encode(message))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, TokentrailError) else f"{type(error).__name__}: {text}"


def _end_with_parent(launch: Launch) -> None:
    """End at once when the parent process is gone, however it went.

    Its end of our standard input closes with it. The process id is looked at as well, since a fork of the
    parent could hold that pipe open; and on Linux the kernel kills us with the parent's main thread, even
    inside native code.
    """
    if sys.platform == "linux":
        _set_up_linux(launch)
    if os.getppid() != launch.parent:
        os._exit(1)
    threading.Thread(target=_watch_parent, args=(launch.parent,), name="parent-watch", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 1):
            break
    os._exit(1)


def _set_up_linux(launch: Launch) -> None:
    import ctypes

    set_pdeathsig, set_name = 1, 15  # <linux/prctl.h>
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):  # another libc; the watching thread is enough
        return
    prctl(set_name, b"tokentrail-eng", 0, 0, 0)
    if launch.die_with_thread:
        prctl(set_pdeathsig, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
