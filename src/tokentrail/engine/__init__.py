"""Requests → tokens: the scheduler, the KV block manager and prefix cache, the engine loop, its process and
client.

`EngineClient` runs an engine in a process of its own and keeps it alive; `LocalEngine` runs the same loop in
the caller's process. Both speak `protocol`. What computes is a `Runner` (batch.py): this room above it knows
neither models nor kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokentrail.engine.config import EngineConfig

if TYPE_CHECKING:
    from tokentrail.engine.client import EngineClient
    from tokentrail.engine.local import LocalEngine

__all__ = ["EngineClient", "EngineConfig", "LocalEngine"]


def __getattr__(name: str) -> object:
    # Lazily: the engine process has no use for asyncio, and the API process none for NumPy.
    if name == "EngineClient":
        from tokentrail.engine.client import EngineClient

        return EngineClient
    if name == "LocalEngine":
        from tokentrail.engine.local import LocalEngine

        return LocalEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
