"""The engine process: `python -m tokentrail.engine.process`, started by `EngineClient` with a socket to it as its
standard input.

It takes requests from that socket, steps, and sends what each step brought. Whatever goes wrong in a
step ends the process: the client starts another, and the requests resume there. Signals are the parent's
business: SIGINT and SIGTERM are ignored here, as a terminal or service manager sends them to parent and child
at once while the parent still drains. The process ends by `Shutdown`, or when its parent is gone.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback

from tokentrail.engine.core import EngineCore
from tokentrail.engine.loading import create_runner
from tokentrail.engine.wire import Channel, Launch, launch_decoder, request_decoder
from tokentrail.protocol import (
    Abort,
    BlockStates,
    GenerateRequest,
    InvalidRequest,
    Loading,
    Look,
    Ready,
    Shutdown,
    StartupFailed,
    TokentrailError,
)

_SECONDS_BETWEEN_PROGRESS = 0.1


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        channel = Channel(socket.socket(fileno=sys.stdin.fileno()))
        first = channel.receive(wait=True)
    except (OSError, EOFError):
        print("tokentrail engine: the parent process ended before it said what to run", file=sys.stderr)
        return 2
    assert first is not None
    launch = launch_decoder.decode(first)
    _end_with_parent(launch)
    try:
        try:
            core = _start(launch, channel)
        except Exception as error:
            if not isinstance(error, TokentrailError):
                traceback.print_exc()
            channel.send(StartupFailed(_one_line(error), type(error).__name__))
            return 1
        channel.send(Ready(core.runner.info, os.getpid()))
        _serve(core, channel)
        core.close()
        return 0
    except EOFError:  # the parent is gone
        return 1


def _start(launch: Launch, channel: Channel) -> EngineCore:
    started = told = time.perf_counter()

    def progress(done: int, total: int) -> None:
        nonlocal told
        now = time.perf_counter()
        if now - told >= _SECONDS_BETWEEN_PROGRESS:
            told = now
            channel.send(Loading(done, total))

    if launch.config.cores:
        _pin(launch.config.cores)
    runner = create_runner(launch.config, launch.runner, progress=progress)
    core = EngineCore(launch.config, runner)
    if not runner.info.load_seconds:
        runner.info.load_seconds = time.perf_counter() - started
    # What exists now stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    return core


def _serve(core: EngineCore, channel: Channel) -> None:
    """Take messages and step until told to end. Sleeps on the socket when there is nothing to do."""
    while True:
        while (data := channel.receive(wait=not core.has_work)) is not None:
            message = request_decoder.decode(data)
            if isinstance(message, GenerateRequest):
                rejected = core.add_request(message)
                if rejected is not None:
                    channel.send(rejected)
            elif isinstance(message, Abort):
                core.abort(message.ids)
            elif isinstance(message, Look):
                channel.send(BlockStates(bytes(core.pool.states)))
            elif isinstance(message, Shutdown):
                return
        output = core.step()
        for refused in core.refused:
            channel.send(refused)
        core.refused.clear()
        if output is not None:
            channel.send(output)


def _pin(cores: tuple[int, ...]) -> None:
    """To be called before threads are started, which inherit it."""
    try:
        os.sched_setaffinity(0, cores)
    except AttributeError:  # not on macOS
        raise InvalidRequest("This system cannot pin processes to cores: leave cores out.") from None
    except OSError as error:
        raise InvalidRequest(
            f"The engine cannot be pinned to the cores {', '.join(map(str, cores))}: {error.strerror}."
        ) from None


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, TokentrailError) else f"{type(error).__name__}: {text}"


def _end_with_parent(launch: Launch) -> None:
    """End at once when the parent process is gone, however it went.

    Its end of our socket closes with it. The process id is looked at as well, since a fork of the parent could
    hold that end open; and on Linux the kernel kills us with the parent's main thread, even inside native code.
    """
    if sys.platform == "linux":
        _set_up_linux(launch)
    if os.getppid() != launch.parent:
        os._exit(1)
    threading.Thread(target=_watch_parent, args=(launch.parent,), name="parent-watch", daemon=True).start()


def _watch_parent(parent: int) -> None:
    hang_up = select.poll()
    hang_up.register(0, 0)  # only POLLHUP and POLLERR, which cannot be masked
    while os.getppid() == parent and not hang_up.poll(1000):
        pass
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
