"""A server before a remote upstream instead of an engine."""

from __future__ import annotations

from typing import Any

from scripted_server import MODEL, ScriptedServer

from tokentrail.answer.parts import TextParts
from tokentrail.answer.remote import RemoteBackend, RemoteTarget


class RemoteServer(ScriptedServer):
    """As `ScriptedServer`; `target`: fields of `RemoteTarget`."""

    def __init__(
        self, parts: TextParts, url: str, target: dict[str, Any] | None = None, **config: Any
    ) -> None:
        self._target = RemoteTarget(**{"name": MODEL, "url": url, **(target or {})})
        super().__init__(parts, config, {}, True)

    def open(self) -> None:
        self.backend = RemoteBackend(self._target, journeys=self.state.journeys, metrics=self.state.metrics)
        self.state.open(self.backend)

    def close(self) -> None:
        self.call(self.backend.aclose())
        super().close()
