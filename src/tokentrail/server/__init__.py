"""HTTP: the routes and wire schemas of each dialect, SSE, errors, health, metrics, and the server's own life.

`serve(config)` runs a server until it is told to stop; `create_app(...)` is the ASGI application alone. The
names are loaded on first use: the engine process is started before the web framework is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokentrail.server.config import ServerConfig

if TYPE_CHECKING:
    from tokentrail.server.app import create_app
    from tokentrail.server.run import serve

__all__ = ["ServerConfig", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name == "serve":
        from tokentrail.server.run import serve

        return serve
    if name == "create_app":
        from tokentrail.server.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
