"""One server with the demo model, for programs that were written for OpenAI's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from real_server import RealServer


@pytest.fixture(scope="session")
def server() -> Iterator[RealServer]:
    running = RealServer(engine={"max_model_len": 2048})
    yield running
    running.end()
