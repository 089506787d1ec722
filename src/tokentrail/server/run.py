"""A server's life: start the engine, load the rest while it loads, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeAlias

# Only what is needed to start the engine process: everything else is imported while that loads its model.
from tokentrail.observability.logging import setup_logging
from tokentrail.protocol import TokentrailError
from tokentrail.server.config import ServedModel, ServerConfig
from tokentrail.server.engines import Engines, RunningModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import uvicorn

    from tokentrail.answer import Backend
    from tokentrail.gateway import Gateway
    from tokentrail.gateway.config import Deployment
    from tokentrail.server.state import ServerState

log = logging.getLogger(__name__)

Served: TypeAlias = "Callable[[Deployment], tuple[ServedModel, ...]]"

_OTHER_FILES = 256
"""File descriptors kept for all but clients: the engine's, logs, adapters, connections that are refused."""
_MOST_FILES = 1 << 20
_BACKLOG = 2048
_HANDSHAKE_TIMEOUT = 15.0


def serve(
    config: ServerConfig,
    *,
    on_ready: Callable[[], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    served: Served | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal ends at once.

    `on_ready` is called once requests are taken, before the banner is printed; `progress` now and
    then before, with the bytes of the model that are loaded, and in all. `served`: reads the models that run here
    from a changed deployment file; without it they are those of the start.
    Raises a `TokentrailError` that says why, if the model cannot be loaded or the address is taken.
    """
    setup_logging(config.log_level)
    raise_file_limit()
    loop = _new_loop()
    try:
        asyncio.set_event_loop(loop)
        server = Server(config, on_ready=on_ready, progress=progress, served=served)
        with _announced(config.deployment):
            loop.run_until_complete(server.run())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def raise_file_limit() -> None:
    """Let this process have as many connections as the system allows it."""
    try:
        import resource
    except ImportError:  # not there on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than it tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """As many as file descriptors are there for."""
    try:
        import resource
    except ImportError:
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return int(max(soft - _OTHER_FILES, soft // 2, 1))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not there on Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Server:
    """One run of a server, on the running event loop."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        runner: str | None = None,
        on_ready: Callable[[], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
        served: Served | None = None,
    ) -> None:
        """`runner`: as `EngineClient` takes it; the others: as `serve` does."""
        self._served = served
        self._progress = progress
        self._on_ready = on_ready
        self.config = config
        self.engines = Engines(config, runner=runner)
        self.port = config.port
        """Where it listens; settled once `run` has begun."""
        self.ready = asyncio.Event()
        """Set when requests are taken."""
        self.state: ServerState | None = None
        self.gateway = None if config.deployment is None else _gateway(config.deployment)
        self._told_to_end = asyncio.Event()

    def end(self) -> None:
        """Have `run` drain and return."""
        self._told_to_end.set()

    async def run(self) -> None:
        """Serve until `end` or a signal. The process's signals are handled if this is its main thread."""
        if self.config.wants_tls:
            from tokentrail.server.tls import server_context

            server_context(self.config)  # what is wrong with it is told before the model is loaded
        listener = _listen(self.config.host, self.config.port)
        self.port = listener.getsockname()[1]
        self._handle_signals()
        told = asyncio.ensure_future(self._told_to_end.wait())
        work = asyncio.ensure_future(self._serve(listener))
        try:
            await asyncio.wait({told, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not self.ready.is_set():
                log.info("stopped while the model was being loaded")
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        finally:
            for task in (told, work):
                task.cancel()
            await asyncio.wait({told, work})
            await self.engines.close()
            listener.close()

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # The loop stays free to start the engine process while threads import and load.
        starting = asyncio.ensure_future(self.engines.start(self._progress))
        parts = asyncio.ensure_future(loop.run_in_executor(None, self.engines.load_texts))
        background: list[asyncio.Future[Any]] = [starting, parts]
        if self.gateway is not None:
            background.append(asyncio.ensure_future(loop.run_in_executor(None, self.gateway.prepare)))
        loading = background.copy()
        try:
            state = self.state = await loop.run_in_executor(None, _import_web, self.config, self.gateway)
            web = _web_server(state)
            serving = asyncio.ensure_future(web.serve(sockets=[listener]))
            told = asyncio.ensure_future(self._told_to_end.wait())
            background += [serving, told]
            await asyncio.gather(*loading)
            self._open(state)
            await asyncio.wait({serving, told}, return_when=asyncio.FIRST_COMPLETED)
            await state.drain(self.config.shutdown_timeout)
            if self.gateway is not None:
                await self.gateway.aclose()
            web.should_exit = True
            await serving
        finally:
            for task in background:
                task.cancel()
            await asyncio.wait(background)

    def _open(self, state: ServerState) -> None:
        """Take requests from now on."""
        backends = self.engines.backends(state.journeys, state.metrics)
        if self.gateway is not None and self.gateway.settings.models:
            further = None if self._served is None else _Further(self.engines, state, self._served)
            backend: Backend = self.gateway.route(backends, state.journeys, state.metrics, engines=further)
        else:
            (backend,) = backends.values()
        names = [card.id for card in backend.models()]
        state.metrics.model_name = state.metrics.model_name or names[0]
        state.open(backend)
        # What has been made so far stays; the collector need not look through it again and again.
        gc.freeze()
        self.ready.set()
        if self._on_ready is not None:
            self._on_ready()
        print(_banner(self, names), flush=True)

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()

        def told() -> None:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
                # The next one ends the process, and the engine with it.
                signal.signal(number, signal.SIG_DFL)
            self.end()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, told)
        # The terminal is gone: answers are finished all the same. Under nohup, which ignores it, serving goes on.
        hang_up = getattr(signal, "SIGHUP", None)
        if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
            loop.add_signal_handler(hang_up, self.end if self.gateway is None else self._reload)

    def _reload(self) -> None:
        """Apply the deployment file as it is now, without holding up what runs."""
        assert self.gateway is not None
        reloading = asyncio.get_running_loop().run_in_executor(None, self.gateway.reload)

        def told(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("the deployment file is not applied: %s", error)

        reloading.add_done_callback(told)


class _Further:
    """See `gateway.LocalEngines`."""

    def __init__(self, engines: Engines, state: ServerState, served: Served) -> None:
        self._engines, self._state, self._served = engines, state, served

    async def start(self, deployment: Deployment, names: Collection[str]) -> dict[str, Backend]:
        loop = asyncio.get_running_loop()
        wanted = [
            one for one in await loop.run_in_executor(None, self._served, deployment) if one.names[0] in names
        ]
        found: dict[str, Backend] = {}
        try:
            for one in wanted:
                log.info("%s is being started", one.names[0])
                found[one.names[0]] = await self._engines.add(one, self._state.journeys, self._state.metrics)
        except BaseException:
            for backend in found.values():
                await self._engines.remove(backend)
            raise
        return found

    async def stop(self, backend: Backend) -> None:
        names = ", ".join(card.id for card in backend.models())
        await self._engines.remove(backend)
        log.info("%s does not run here any more", names)


def _gateway(path: str) -> Gateway:
    """Before the model is loaded: a mistake in the file, or a database that cannot be opened, is told at once."""
    from tokentrail.gateway import Gateway

    gateway = Gateway(path)
    gateway.prepare()
    return gateway


def _announced(deployment: str | None) -> contextlib.AbstractContextManager[None]:
    """So that `tokentrail config reload` finds this process."""
    if deployment is None:
        return contextlib.nullcontext()
    from tokentrail.gateway.running import announced

    return announced(deployment)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Connections made before the web server runs wait in its queue."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise TokentrailError(
            f"Cannot listen at {host}:{port}: {error.strerror or error}. Choose another --host or --port."
        ) from None
    return listener


def _import_web(config: ServerConfig, gateway: Gateway | None) -> ServerState:
    import h11  # noqa: F401
    import uvicorn
    import uvicorn.lifespan.off  # noqa: F401

    import tokentrail.server.app
    import tokentrail.server.connection  # noqa: F401
    from tokentrail.journey import JourneyStore
    from tokentrail.observability import Metrics
    from tokentrail.server.state import ServerState

    journeys = JourneyStore(config.trail_size, keep_text=config.trail_text)
    return ServerState(config, journeys, Metrics(), gateway)


def _web_server(state: ServerState) -> uvicorn.Server:
    import uvicorn

    from tokentrail.server.app import create_app
    from tokentrail.server.connection import KEEP_ALIVE, connection_class
    from tokentrail.server.tls import server_context

    tls = server_context(state.config)

    class WebServer(uvicorn.Server):
        """Leaves signals to us, and does not wait for the end of a handshake as long as asyncio does."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await self.lifespan.startup()
            loop, config = asyncio.get_running_loop(), self.config

            def connection() -> asyncio.Protocol:
                return config.http_protocol_class(  # type: ignore[call-arg]
                    config=config, server_state=self.server_state, app_state=self.lifespan.state
                )

            handshake = None if tls is None else _HANDSHAKE_TIMEOUT
            self.servers = [
                await loop.create_server(
                    connection, sock=one, ssl=tls, backlog=_BACKLOG, ssl_handshake_timeout=handshake
                )
                for one in sockets or ()
            ]
            self.started = True

        @contextlib.contextmanager
        def capture_signals(self):  # type: ignore[no-untyped-def]
            yield

    config = state.config
    return WebServer(
        uvicorn.Config(
            create_app(state),
            # h11 bounds the size of headers; the faster parser takes any number of megabytes.
            http=connection_class(
                send_timeout=config.send_timeout,
                max_connections=config.max_connections or most_connections(),
                metrics=state.metrics,
                log_requests=config.log_requests,
            ),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            headers=[("keep-alive", f"timeout={KEEP_ALIVE:.0f}")],
            # Connections see to it themselves, a little earlier.
            timeout_keep_alive=int(KEEP_ALIVE) + 5,
            # All answers are done when it is told to exit; this is for connections that do not close.
            timeout_graceful_shutdown=2,
        )
    )


def _banner(server: Server, names: Sequence[str]) -> str:
    host = server.config.host
    host = {"0.0.0.0": "localhost", "::": "localhost", "": "localhost"}.get(host, host)
    scheme = "https" if server.config.ssl_certfile else "http"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{server.port}"
    key = (
        f' -H "Authorization: Bearer {server.config.key_hint}"'
        if server.state is not None and server.state.keys.required
        else ""
    )
    also = [f"  also as   {', '.join(names[1:])}"] if len(names) > 1 else []
    models = server.engines.models
    several = server.config.models is not None
    return "\n".join(
        [
            f"Tokentrail serves {names[0]} at {url}/v1",
            *also,
            *(line for model in models for line in _facts(model, named=several)),
            f"  try       curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\",
            f'              -d \'{{"model": "{names[0]}", "temperature": 0, "messages": '
            '[{"role": "user", "content": "What is the capital of France?"}]}\'',
        ]
    )


def _facts(model: RunningModel, *, named: bool) -> list[str]:
    """Of a model of the banner; `named`: it is one of several."""
    info = model.engine.info
    assert model.parts is not None
    cut = f", cut from {info.wanted_model_len}: the KV cache holds no more (--kv-cache-memory)"
    capacity = info.num_blocks * info.block_size
    cores = model.served.cores
    listed = "; ".join(",".join(map(str, one)) for one in cores)
    replicas = [f"  replicas  {len(cores)}, pinned to the cores {listed}"] if cores else []
    return [
        *([f"{model.served.names[0]}"] if named else []),
        f"  file      {model.parts.path}",
        f"  model     {info.architecture}, {info.num_parameters / 1e6:.0f} M parameters, "
        f"{info.threads} threads, {info.isa}",
        *replicas,
        f"  loaded    {info.loaded}",
        f"  context   {info.max_model_len} tokens{cut * (info.max_model_len < info.wanted_model_len)}",
        f"  KV cache  {capacity} tokens ({capacity * info.kv_bytes_per_token / 2**20:.0f} MiB)",
    ]
