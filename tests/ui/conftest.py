"""Fixtures: servers before a scripted engine, as in tests/server, and a browser."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from scripted_server import MakeServer, ScriptedServer

from tokentrail.answer.parts import TextParts, load_text_parts


@pytest.fixture(scope="session")
def text_parts() -> TextParts:
    return load_text_parts(None)


@pytest.fixture
def make_server(text_parts: TextParts) -> Iterator[MakeServer]:
    """make_server(ready=True, engine={…}, **config)"""
    made: list[ScriptedServer] = []

    def make(*, ready: bool = True, engine: dict[str, Any] | None = None, **config: Any) -> ScriptedServer:
        made.append(ScriptedServer(text_parts, config, engine or {}, ready))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture(scope="module")
def server(text_parts: TextParts) -> Iterator[ScriptedServer]:
    """One server with default settings, for tests that only ask."""
    shared = ScriptedServer(text_parts, {}, {}, True)
    yield shared
    shared.close()
