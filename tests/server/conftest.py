"""Fixtures: servers on real sockets before a scripted engine (scripted_server.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from real_server import RealServer
from scripted_server import MakeServer, ScriptedServer

from tokentrail.answer.parts import TextParts, load_text_parts


@pytest.fixture(scope="session")
def text_parts() -> TextParts:
    return load_text_parts(None)


@pytest.fixture(scope="session")
def demo_server() -> Iterator[RealServer]:
    """The demo model in processes of its own, for tests that only ask it."""
    engine = {"max_model_len": 1024, "max_num_seqs": 16, "kv_cache_memory": 400 << 20}
    running = RealServer(engine=engine, log_level="warning", responses_store=10)
    yield running
    code, log = running.end()
    assert code == 0, log


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
