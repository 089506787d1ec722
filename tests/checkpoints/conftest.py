from __future__ import annotations

from pathlib import Path

import gguf
import pytest


@pytest.fixture(scope="session")
def demo_reference(demo_path: Path) -> gguf.GGUFReader:
    """The demo file as the `gguf` package reads it, which takes it seconds."""
    return gguf.GGUFReader(demo_path)
